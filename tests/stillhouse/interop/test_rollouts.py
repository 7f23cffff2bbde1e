from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError, InputError
from stillhouse.interop import convert
from stillhouse.types import JsonObject, StopReason
from tests.stillhouse.interop.result import Result

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


Read = Callable[..., Result]


@pytest.fixture
def read(tmp_path: Path, write: Write) -> Read:
    """Converts rollout files `sample_1.json` and so on, with these contents."""

    def run(*rows: Any, output: str = "out", **options: Any) -> Result:
        for number, row in enumerate(rows, start=1):
            write(tmp_path / f"rollouts/sample_{number}.json", row)
        return Result(tmp_path / "rollouts", output=tmp_path / output, **options)

    return run


def test_both_layouts_become_trajectories_whose_prompts_are_those_written(
    tmp_path: Path, rollout: Make, write: Write, read: Read
) -> None:
    write(tmp_path / "rollouts/20260101_120000_ab12.json", rollout())
    write(tmp_path / "rollouts/rollout_1/sample_2.json", rollout(id="sample_2"))
    write(tmp_path / "rollouts/rollout_1/sample_10.json", rollout(id="sample_10"))
    result = read(teacher="gpt-5.2")
    trajectories, report = result.trajectories, result.report
    (prompt,) = result.loaded.prompts
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert (result.beside.expected_answer, result.beside.tag) == ("pembrolizumab", "trials")
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


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, rollout: Make, read: Read) -> None:
    rows = [rollout(total_reward=float(number)) for number in range(1, 11)]
    one, _ = read(*rows, output="one"), read(output="two")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["converted.json", "prompts.jsonl", "trajectories.jsonl", "unmapped.jsonl"]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    # By number, not by name.
    assert one.listed("total_reward") == [float(number) for number in range(1, 11)]


FAILED = [
    {"completed": False, "success": None},
    {"completed": "error", "success": False, "error": "HTTP 500"},
    {"success": False},
]


@pytest.mark.parametrize("changes", FAILED)
def test_failed_rollouts_are_left_out_and_told_of_or_come_as_failed_ones_when_they_are_wanted(
    rollout: Make, read: Read, changes: JsonObject
) -> None:
    failed = rollout(**changes, conversation=rollout()["conversation"][:2])
    result = read(rollout(), failed)
    assert (len(result.trajectories), result.report.failed, result.report.rows_left_out) == (1, 1, 1)
    (told,) = [row for row in result.unmapped if row["key"] == "error"]
    assert told["place"].endswith("sample_2.json")
    assert "--include-failed" in told["reason"]
    result = read(include_failed=True)
    trajectory = result.trajectories[1]
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error is not None
    assert trajectory.error["message"] == changes.get("error", trajectory.error["message"])
    assert trajectory.turns == []
    assert (result.report.failed, result.report.rows_left_out) == (1, 0)


def test_a_rollout_whose_reward_failed_is_as_good_as_any(rollout: Make, read: Read) -> None:
    result = read(rollout(errors=["llm_judge: timeout"]))
    assert (len(result.trajectories), result.report.failed) == (1, 0)
    assert any(row["value"] == ["llm_judge: timeout"] for row in result.unmapped)


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
    rollout: Make, read: Read, length: int, truncated: bool, expected: StopReason
) -> None:
    row = rollout(conversation=rollout()["conversation"][:length], truncated=truncated, turns=1)
    assert [trajectory.stop_reason for trajectory in read(row).trajectories] == [expected]


def test_turns_of_the_prompt_itself_stay_in_the_prompt(rollout: Make, read: Read) -> None:
    asked = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "And its population?"},
    ]
    said = {"role": "assistant", "content": "2.1 million"}
    result = read(rollout(conversation=[*asked, said], turns=1, completion=112))
    assert [prompt.messages for prompt in result.loaded.prompts] == [asked]
    usage = {"prompt_tokens": 700, "completion_tokens": 112}
    assert [[turn.usage for turn in one.turns] for one in result.trajectories] == [[usage]]


def test_tokens_of_several_turns_are_listed_and_not_made_up(rollout: Make, read: Read) -> None:
    result = read(rollout())
    assert [[turn.usage for turn in one.turns] for one in result.trajectories] == [[{}, {}]]
    assert result.listed("usage") == [{"prompt_tokens": 700, "completion_tokens": 112}]


def test_schemas_of_the_tools_come_from_a_file_and_are_missed_without_one(
    tmp_path: Path, rollout: Make, write: Write, read: Read
) -> None:
    without = read(rollout())
    assert [trajectory.tools for trajectory in without.trajectories] == [[]]
    assert [row["value"] for row in without.unmapped if "--tools" in row["reason"]] == ["browser_navigate"]
    with_tools = read(tools_file=write(tmp_path / "tools.py", TOOLS))
    ((schema,),) = (trajectory.tools for trajectory in with_tools.trajectories)
    assert schema["function"]["parameters"]["required"] == ["url"]
    assert not any("--tools" in row["reason"] for row in with_tools.unmapped)


def test_torn_and_malformed_rollouts_are_told_of_and_the_rest_goes_on(
    tmp_path: Path, rollout: Make, write: Write, read: Read
) -> None:
    write(tmp_path / "rollouts/run.txt", "Rollout ID: x")
    result = read(
        '{"id": "sample_1", "completed": tr',
        rollout(conversation=[{"role": "robot", "content": "hi"}]),
        rollout(metadata=[1]),
        [1],
        rollout(conversation=[]),
        rollout(),
    )
    assert (result.report.rows, result.report.rows_left_out, len(result.trajectories)) == (6, 5, 1)
    told = {Path(row["place"]).name: row for row in result.unmapped if row["key"] is None}
    assert "unexpected end of data" in told["sample_1.json"]["value"]
    assert "'robot'" in told["sample_2.json"]["value"]
    assert "expected metadata to be an object" in told["sample_3.json"]["value"]
    assert "expected a JSON object" in told["sample_4.json"]["value"]
    assert "conversation" in told["sample_5.json"]["value"]
    assert told["run.txt"]["reason"] == "a file of another kind: not read"


def test_nothing_is_written_where_nothing_could_be_read(tmp_path: Path, rollout: Make, write: Write) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "failed/sample_1.json", rollout(completed="error", success=False, error="HTTP 500"))
    write(tmp_path / "torn/sample_1.json", "{")
    told = {
        "absent": "no such file",
        "empty": "empty",
        "failed": r"--include-failed .*HTTP 500",
        "torn": r"sample_1\.json",
    }
    for name, problem in told.items():
        with pytest.raises(InputError, match=problem):
            convert(tmp_path / name, tmp_path / "out")
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


def test_metadata_that_differs_between_samples_of_a_prompt_is_told_of(rollout: Make, read: Read) -> None:
    facts = [{"answer": answer, "iteration": number} for number, answer in enumerate("454")]
    result = read(*(rollout(metadata=metadata) for metadata in facts))
    conflicts = [row for row in result.unmapped if row["key"] == "metadata"]
    assert [(Path(row["place"]).name, row["value"]) for row in conflicts] == [("sample_2.json", {"answer": "5"})]
    assert result.beside.expected_answer == "4"
