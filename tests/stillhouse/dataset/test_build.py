import os
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import DatasetConfig, FiltersConfig
from stillhouse.dataset.build import build_dataset
from stillhouse.dataset.read import original_messages, read_rows
from stillhouse.errors import ConfigError, InputError
from stillhouse.store import ArtifactStore
from stillhouse.types import JsonObject, StopReason, Trajectory

Make = Callable[..., Trajectory]
STUDENT = "embedded:student"


def build(
    folder: Path, trajectories: list[Trajectory], metadata: dict, max_length: int = 512, **config: object
) -> JsonObject:
    folder.mkdir(exist_ok=True)
    num_rows, facts = build_dataset(
        iter(trajectories),
        metadata,
        DatasetConfig(**config),
        tokenizer_ref=STUDENT,
        max_length=max_length,
        folder=folder,
    )
    assert num_rows == facts["kept"]
    return facts


def mixed(make: Make) -> list[Trajectory]:
    """Eight good rows, one of them twice, and one for each of several ways to fail."""
    good = [make(number) for number in range(8)]
    call = good[0].messages[1]
    return [
        *good,
        good[3],
        make(100, answer="The answer is 6."),
        make(
            101, stop_reason=StopReason.ERROR, turns=[], error={"kind": "permanent", "message": "gone", "status": 404}
        ),
        make(102, stop_reason=StopReason.MAX_TURNS, messages=[good[0].messages[0], call, good[0].messages[2], call]),
        make(103, answer="The answer " + "is " * 600 + "5"),
        make(104, messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "  "}]),
    ]


def test_every_distinct_trajectory_is_in_one_file_with_all_its_reasons(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    trajectories = mixed(make_trajectory)
    facts = build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.3)
    rows = {name: list(read_rows(tmp_path / "d", name)) for name in ("train", "validation", "rejected")}
    ids = [row["id"] for name in rows for row in rows[name]]
    assert sorted(ids) == sorted({t.rollout_key for t in trajectories})
    assert {int(row["id"], 16): row["drop_reasons"] for row in rows["rejected"]} == {
        100: ["wrong"],
        101: ["error", "no_answer"],
        102: ["max_turns", "no_answer", "wrong"],
        103: ["too_long"],
        104: ["no_answer", "wrong"],
    }
    assert all(row["kept"] and row["drop_reasons"] == [] and row["split"] == name
               for name in ("train", "validation") for row in rows[name])  # fmt: skip
    assert all(row["kept"] is False and row["split"] is None for row in rows["rejected"])
    assert (facts["kept"], facts["dropped"], facts["duplicates"]) == (8, 5, 1)
    assert (facts["train"], facts["validation"]) == (len(rows["train"]), len(rows["validation"]))
    assert (facts["right"], facts["wrong"], facts["unverified"]) == (9, 3, 1)
    assert facts["drop_reasons"] == {
        "error": 1, "max_turns": 1, "no_answer": 3, "wrong": 3, "too_long": 1,
    }  # fmt: skip


def test_funnel_starts_at_the_rollouts_never_rises_and_ends_at_the_kept(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    trajectories = mixed(make_trajectory)
    funnel = build(tmp_path / "d", trajectories, metadata_for(trajectories))["funnel"]
    assert funnel[:5] == [
        ["rollouts", 14],
        ["distinct", 13],
        ["finished", 11],
        ["with an answer", 10],
        ["not wrong", 9],
    ]
    assert ["short enough", 8] in funnel
    assert funnel[-1] == ["kept", 8]
    counts = [count for _, count in funnel]
    assert counts == sorted(counts, reverse=True)


def test_token_counts_are_those_of_the_students_template(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    trajectories = [make_trajectory(number) for number in range(4)]
    facts = build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.0)
    tokenizer = load_tokenizer(STUDENT)
    rendered = {t.rollout_key: render_samples(tokenizer, t.messages, t.tools)[0] for t in trajectories}
    rows = list(read_rows(tmp_path / "d", "train"))
    for row in rows:
        token_ids, loss_mask = rendered[row["id"]]
        assert (row["num_tokens"], row["num_supervised_tokens"]) == (len(token_ids), sum(loss_mask))
    assert facts["supervised_tokens"] == sum(row["num_supervised_tokens"] for row in rows) > 0


def test_longest_row_is_the_lower_of_both_limits(tmp_path: Path, make_trajectory: Make, metadata_for: Callable) -> None:
    trajectories = [make_trajectory(0, answer="The answer is " + "so " * 50 + "5"), make_trajectory(1)]
    metadata = metadata_for(trajectories)
    build(tmp_path / "a", trajectories, metadata, validation_fraction=0.0)
    lengths = sorted(row["num_tokens"] for row in read_rows(tmp_path / "a", "train"))
    for name, limits in (("b", {"max_length": lengths[0]}), ("c", {"filters": {"max_tokens": lengths[0]}})):
        facts = build(tmp_path / name, trajectories, metadata, validation_fraction=0.0, **limits)
        assert facts["drop_reasons"] == {"too_long": 1}


def test_a_conversation_the_template_refuses_is_a_labelled_row(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    nameless = {"type": "function", "function": {"description": "a schema the template cannot show"}}
    trajectories = [make_trajectory(0), make_trajectory(1, tools=[nameless])]
    facts = build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.0)
    assert facts["drop_reasons"] == {"template_error": 1}
    (row,) = read_rows(tmp_path / "d", "rejected")
    assert "chat template" in row["template_problem"]


def test_rows_of_one_prompt_share_a_split(tmp_path: Path, make_trajectory: Make, metadata_for: Callable) -> None:
    trajectories = [
        make_trajectory(number, prompt_id=f"prompt-{number % 20}", sample_index=number // 20) for number in range(80)
    ]
    facts = build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.3)
    prompts = [{row["prompt_id"] for row in read_rows(tmp_path / "d", name)} for name in ("train", "validation")]
    assert prompts[0].isdisjoint(prompts[1])
    assert facts["train"] == 4 * len(prompts[0])
    assert facts["validation"] == 4 * len(prompts[1]) > 0


def test_equal_input_gives_equal_bytes(tmp_path: Path, make_trajectory: Make, metadata_for: Callable) -> None:
    trajectories = mixed(make_trajectory)
    for name in ("a", "b"):
        build(tmp_path / name, trajectories, metadata_for(trajectories))
    names = sorted(os.listdir(tmp_path / "a"))
    assert names == ["README.md", "rejected.parquet", "report.html", "train.parquet", "validation.parquet"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_no_kept_row_raises_with_the_funnel_and_leaves_no_artifact(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    trajectories = [make_trajectory(number, answer="The answer is 6.") for number in range(3)]

    def fill(folder: Path) -> tuple[int, JsonObject]:
        return build_dataset(
            trajectories,
            metadata_for(trajectories),
            DatasetConfig(),
            tokenizer_ref=STUDENT,
            max_length=512,
            folder=folder,
        )

    with pytest.raises(InputError, match=r"no trajectory of 3 is kept(.|\n)* 0  not wrong(.|\n)*wrong 3"):
        ArtifactStore(tmp_path).write("dataset", "key", fill)
    assert list((tmp_path / "artifacts" / "dataset").iterdir()) == []


def test_nothing_to_train_on_is_an_error_even_if_rows_are_kept(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    trajectories = [make_trajectory(0)]
    with pytest.raises(InputError, match="validation_fraction"):
        build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.999999)


def test_unknown_student_is_named(tmp_path: Path, make_trajectory: Make) -> None:
    with pytest.raises(ConfigError, match="no-such"):
        build_dataset(
            [make_trajectory(0)], {}, DatasetConfig(), tokenizer_ref="./no-such", max_length=9, folder=tmp_path
        )


def test_folder_loads_as_a_hugging_face_dataset(tmp_path: Path, make_trajectory: Make, metadata_for: Callable) -> None:
    trajectories = mixed(make_trajectory)
    facts = build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.3)
    loaded = datasets.load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {
        "train": facts["train"], "validation": facts["validation"],
    }  # fmt: skip
    first = loaded["train"][0]
    assert original_messages(first) == make_trajectory(int(first["id"], 16)).messages
    rejected = datasets.load_dataset(str(tmp_path / "d"), "rejected", cache_dir=str(tmp_path / "cache"))
    assert len(rejected["rejected"]) == facts["dropped"]


def test_an_empty_file_is_readable_and_not_named_to_datasets_which_refuses_it(
    tmp_path: Path, make_trajectory: Make, metadata_for: Callable
) -> None:
    trajectories = [make_trajectory(0)]
    build(tmp_path / "d", trajectories, metadata_for(trajectories), validation_fraction=0.0)
    assert list(read_rows(tmp_path / "d", "validation")) == []
    loaded = datasets.load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 1}


def test_card_tells_counts_origin_and_columns(tmp_path: Path, make_trajectory: Make, metadata_for: Callable) -> None:
    trajectories = mixed(make_trajectory)
    (tmp_path / "d").mkdir()
    build_dataset(
        trajectories, metadata_for(trajectories), DatasetConfig(filters=FiltersConfig(max_tool_errors=7)),
        tokenizer_ref=STUDENT, max_length=512, folder=tmp_path / "d", lineage={"rollouts": "abc123"},
    )  # fmt: skip
    card = (tmp_path / "d" / "README.md").read_text()
    for text in (
        "8 of 14 trajectories are kept", "| not wrong | 9 |", "| `max_turns` | 1 |", "teacher",
        "| rollouts | `abc123` |", "max_tool_errors: 7", "student@", "| `num_supervised_tokens` | int64 |",
    ):  # fmt: skip
        assert text in card
