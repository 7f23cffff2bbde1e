from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import PromptsConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.interop import ConversionReport, ConvertOptions, convert
from stillhouse.prompts import parse_prompts
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.types import JsonObject, StopReason, Trajectory

Make = Callable[..., JsonObject]
Write = Callable[..., Path]
TOOLS = '''
from stillhouse.tools import tool


@tool
def browser_navigate(url: str) -> str:
    """Opens a page.

    Args:
        url: its address.
    """
    return url
'''


def _convert(source: Path, output: Path, **options: object) -> tuple[ConversionReport, list[Trajectory]]:
    report = convert(source, output, "auto", ConvertOptions(**options))  # type: ignore[arg-type]
    file = output / "trajectories.jsonl"
    return report, list(read_trajectories(file)) if file.exists() else []


def test_both_layouts_become_trajectories_whose_prompts_are_those_written(
    tmp_path: Path, rollout: Make, write: Write
) -> None:
    write(tmp_path / "rollouts/20260101_120000_ab12.json", rollout())
    write(tmp_path / "rollouts/rollout_1/sample_2.json", rollout(id="sample_2"))
    write(tmp_path / "rollouts/rollout_1/sample_10.json", rollout(id="sample_10"))
    report, trajectories = _convert(tmp_path / "rollouts", tmp_path / "out", teacher="gpt-5.2")
    loaded = parse_prompts(PromptsConfig(source=str(tmp_path / "out/prompts.jsonl")))
    (prompt,) = loaded.prompts
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    beside = loaded.metadata[prompt.id]
    assert (beside.expected_answer, beside.tag) == ("pembrolizumab", "trials")
    assert [trajectory.prompt_id for trajectory in trajectories] == [prompt.id] * 3
    assert [trajectory.sample_index for trajectory in trajectories] == [0, 1, 2]
    assert len({trajectory.rollout_key for trajectory in trajectories}) == 3
    call, *rest = rollout()["conversation"][2:]
    del call["content"]  # empty beside the call
    assert trajectories[0].messages[2:] == [call, *rest]
    assert {trajectory.model for trajectory in trajectories} == {"gpt-5.2"}
    assert {trajectory.stop_reason for trajectory in trajectories} == {StopReason.ANSWERED}
    assert [turn.finish_reason for turn in trajectories[0].turns] == ["tool_calls", "unknown"]
    assert [turn.latency_s for turn in trajectories[0].turns] == [None, None]
    assert (report.files, report.rows, report.prompts, report.repeated_prompts) == (3, 3, 1, 2)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, rollout: Make, write: Write) -> None:
    for number in (1, 2, 10):
        write(tmp_path / f"rollouts/rollout_1/sample_{number}.json", rollout(total_reward=float(number)))
    for name in ("one", "two"):
        _convert(tmp_path / "rollouts", tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["converted.json", "prompts.jsonl", "trajectories.jsonl", "unmapped.jsonl"]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    rewards = [row for row in read_jsonl(tmp_path / "one/unmapped.jsonl") if row["key"] == "total_reward"]
    assert [row["value"] for row in rewards] == [1.0, 2.0, 10.0]  # by number, not by name


FAILED = [
    {"completed": False, "success": None},
    {"completed": "error", "success": False, "error": "HTTP 500"},
    {"success": False},
]


@pytest.mark.parametrize("changes", FAILED)
def test_failed_rollouts_are_left_out_and_told_of_or_come_as_failed_ones_when_they_are_wanted(
    tmp_path: Path, rollout: Make, write: Write, changes: JsonObject
) -> None:
    write(tmp_path / "rollouts/sample_1.json", rollout())
    write(tmp_path / "rollouts/sample_2.json", rollout(**changes))
    report, trajectories = _convert(tmp_path / "rollouts", tmp_path / "out")
    assert (len(trajectories), report.failed, report.rows_left_out) == (1, 1, 1)
    (told,) = [row for row in read_jsonl(tmp_path / "out/unmapped.jsonl") if row["key"] == "error"]
    assert told["place"].endswith("sample_2.json")
    assert "--include-failed" in told["reason"]
    write(tmp_path / "failed/sample_1.json", rollout(**changes, conversation=rollout()["conversation"][:2]))
    report, (trajectory,) = _convert(tmp_path / "failed", tmp_path / "out", include_failed=True)
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error is not None
    assert trajectory.error["message"] == changes.get("error", trajectory.error["message"])
    assert trajectory.turns == []
    assert (report.failed, report.rows_left_out) == (1, 0)


def test_a_rollout_whose_reward_failed_is_as_good_as_any(tmp_path: Path, rollout: Make, write: Write) -> None:
    write(tmp_path / "rollouts/sample_1.json", rollout(errors=["llm_judge: timeout"]))
    report, trajectories = _convert(tmp_path / "rollouts", tmp_path / "out")
    assert (len(trajectories), report.failed) == (1, 0)
    assert any(row["value"] == ["llm_judge: timeout"] for row in read_jsonl(tmp_path / "out/unmapped.jsonl"))


@pytest.mark.parametrize(
    ("length", "truncated", "expected"),
    [
        (5, False, StopReason.ANSWERED),
        (5, True, StopReason.LENGTH),
        (4, False, StopReason.MAX_TURNS),
        (4, True, StopReason.CONTEXT_OVERFLOW),
        (3, False, StopReason.MAX_TURNS),
    ],
)
def test_why_a_rollout_ended_follows_from_its_last_message(
    tmp_path: Path, rollout: Make, write: Write, length: int, truncated: bool, expected: StopReason
) -> None:
    row = rollout(conversation=rollout()["conversation"][:length], truncated=truncated, turns=1)
    write(tmp_path / "rollouts/sample_1.json", row)
    _, (trajectory,) = _convert(tmp_path / "rollouts", tmp_path / "out")
    assert trajectory.stop_reason is expected


def test_turns_of_the_prompt_itself_stay_in_the_prompt(tmp_path: Path, rollout: Make, write: Write) -> None:
    asked = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "And its population?"},
    ]
    said = {"role": "assistant", "content": "2.1 million"}
    write(tmp_path / "rollouts/sample_1.json", rollout(conversation=[*asked, said], turns=1, completion=112))
    _, (trajectory,) = _convert(tmp_path / "rollouts", tmp_path / "out")
    (prompt,) = parse_prompts(PromptsConfig(source=str(tmp_path / "out/prompts.jsonl"))).prompts
    assert prompt.messages == asked
    (turn,) = trajectory.turns
    assert turn.usage == {"prompt_tokens": 700, "completion_tokens": 112}


def test_tokens_of_several_turns_are_listed_and_not_made_up(tmp_path: Path, rollout: Make, write: Write) -> None:
    write(tmp_path / "rollouts/sample_1.json", rollout())
    _, (trajectory,) = _convert(tmp_path / "rollouts", tmp_path / "out")
    assert [turn.usage for turn in trajectory.turns] == [{}, {}]
    (told,) = [row for row in read_jsonl(tmp_path / "out/unmapped.jsonl") if row["key"] == "usage"]
    assert told["value"] == {"prompt_tokens": 700, "completion_tokens": 112}


def test_schemas_of_the_tools_come_from_a_file_and_are_missed_without_one(
    tmp_path: Path, rollout: Make, write: Write
) -> None:
    write(tmp_path / "rollouts/sample_1.json", rollout())
    write(tmp_path / "tools.py", TOOLS)
    _, (without,) = _convert(tmp_path / "rollouts", tmp_path / "without")
    assert without.tools == []
    missed = [row for row in read_jsonl(tmp_path / "without/unmapped.jsonl") if "--tools" in row["reason"]]
    assert [row["value"] for row in missed] == ["browser_navigate"]
    _, (with_tools,) = _convert(tmp_path / "rollouts", tmp_path / "with", tools_file=tmp_path / "tools.py")
    (schema,) = with_tools.tools
    assert schema["function"]["parameters"]["required"] == ["url"]
    assert not any("--tools" in row["reason"] for row in read_jsonl(tmp_path / "with/unmapped.jsonl"))


def test_torn_and_malformed_rollouts_are_told_of_and_the_rest_goes_on(
    tmp_path: Path, rollout: Make, write: Write
) -> None:
    write(tmp_path / "rollouts/sample_1.json", '{"id": "sample_1", "completed": tr')
    write(tmp_path / "rollouts/sample_2.json", rollout(conversation=[{"role": "robot", "content": "hi"}]))
    write(tmp_path / "rollouts/sample_3.json", rollout(metadata=[1]))
    write(tmp_path / "rollouts/sample_4.json", [1])
    write(tmp_path / "rollouts/sample_5.json", rollout(conversation=[]))
    write(tmp_path / "rollouts/sample_6.json", rollout())
    write(tmp_path / "rollouts/run.txt", "Rollout ID: x")
    report, trajectories = _convert(tmp_path / "rollouts", tmp_path / "out")
    assert (report.rows, report.rows_left_out, len(trajectories)) == (6, 5, 1)
    told = {Path(row["place"]).name: row for row in read_jsonl(tmp_path / "out/unmapped.jsonl") if row["key"] is None}
    assert "unexpected end of data" in told["sample_1.json"]["value"]
    assert "'robot'" in told["sample_2.json"]["value"]
    assert "expected metadata to be an object" in told["sample_3.json"]["value"]
    assert "expected a JSON object" in told["sample_4.json"]["value"]
    assert "conversation" in told["sample_5.json"]["value"]
    assert told["run.txt"]["reason"] == "a file of another kind: not read"


def test_nothing_is_written_where_nothing_could_be_read(tmp_path: Path, rollout: Make, write: Write) -> None:
    with pytest.raises(InputError, match="no such file"):
        convert(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        convert(tmp_path / "empty", tmp_path / "out")
    write(tmp_path / "failed/sample_1.json", rollout(completed="error", success=False, error="HTTP 500"))
    with pytest.raises(InputError, match=r"--include-failed .*HTTP 500"):
        convert(tmp_path / "failed", tmp_path / "out")
    write(tmp_path / "torn/sample_1.json", "{")
    with pytest.raises(InputError, match=r"sample_1\.json"):
        convert(tmp_path / "torn", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "failed", "torn"]


def test_a_wrong_format_is_refused_with_what_it_looks_like(tmp_path: Path, rollout: Make, write: Write) -> None:
    source = write(tmp_path / "sample_1.json", rollout())
    with pytest.raises(InputError, match=r"\.jsonl.* roll-jsonl .*\.json"):
        convert(source, tmp_path / "out", "roll-jsonl")
    lines = write(tmp_path / "chat.jsonl", {"instruction": "Hi", "output": "Ho"})
    with pytest.raises(ConfigError, match=r"--from openai: .* alpaca"):
        convert(lines, tmp_path / "out", "openai")
    with pytest.raises(InputError, match="rnow-jsonl"):
        convert(write(tmp_path / "other.jsonl", {"question": "Hi"}), tmp_path / "out")


def test_only_a_folder_of_its_own_is_replaced(tmp_path: Path, rollout: Make, write: Write) -> None:
    source = write(tmp_path / "sample_1.json", rollout())
    write(tmp_path / "other/notes.txt", "mine")
    with pytest.raises(ConfigError, match="other files"):
        convert(source, tmp_path / "other")
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out")
    (tmp_path / "out/trajectories.jsonl").unlink()
    convert(source, tmp_path / "out")
    assert (tmp_path / "out/trajectories.jsonl").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out", "sample_1.json"]
    assert (tmp_path / "other/notes.txt").read_text() == "mine"


def test_metadata_that_differs_between_samples_of_a_prompt_is_told_of(
    tmp_path: Path, rollout: Make, write: Write
) -> None:
    write(tmp_path / "rollouts/sample_1.json", rollout(metadata={"answer": "4", "iteration": 1}))
    write(tmp_path / "rollouts/sample_2.json", rollout(metadata={"answer": "5", "iteration": 2}))
    write(tmp_path / "rollouts/sample_3.json", rollout(metadata={"answer": "4", "iteration": 3}))
    _convert(tmp_path / "rollouts", tmp_path / "out")
    conflicts = [row for row in read_jsonl(tmp_path / "out/unmapped.jsonl") if row["key"] == "metadata"]
    assert [(Path(row["place"]).name, row["value"]) for row in conflicts] == [("sample_2.json", {"answer": "5"})]
    loaded = parse_prompts(PromptsConfig(source=str(tmp_path / "out/prompts.jsonl")))
    assert loaded.metadata[loaded.prompts[0].id].expected_answer == "4"
