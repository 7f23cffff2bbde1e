import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.dataset.report.figures import FunnelCounts
from stillhouse.dataset.report.summary import summarise
from stillhouse.dataset.schema import PREFERENCE_COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import InputError
from stillhouse.store.fingerprint import file_sha256
from stillhouse.verification.intervals import Group, effective_sample_size, wilson_interval

Row = dict[str, Any]
MakeRow = Callable[..., Row]
WriteDataset = Callable[[Path, Iterable[Row]], Path]


def test_facts_of_a_small_dataset(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow, rejected: MakeRow
) -> None:
    used = {"completion_tokens": 10, "cost_usd": 0.5, "num_tokens": 30, "num_supervised_tokens": 9}
    rows = [
        kept(1, verified=True, **used),
        kept(2, verified=None, split="validation", **used),
        rejected(3, "wrong", "too_long", verified=False, **used),
        rejected(4, "error", stop_reason="error", turns=0),
    ]
    assert summarise(write_dataset(tmp_path, rows), num_repeated=2).facts() == {
        "funnel": [["rollouts", 6], ["distinct", 4], *FUNNEL, ["kept", 2]],
        "kept": 2,
        "dropped": 2,
        "duplicates": 2,
        "exact_duplicates": 0,
        "near_duplicates": 0,
        "contaminated": None,
        "prompts": 4,
        "clusters": None,
        "drop_reasons": {"error": 1, "wrong": 1, "too_long": 1},
        "right": 1,
        "wrong": 1,
        "unverified": 2,
        "train": 1,
        "validation": 1,
        "tokens": 60,
        "supervised_tokens": 18,
        "candidate_completion_tokens": 30,
        "completion_tokens_kept": 20,
        "completion_tokens_per_kept_row": 15.0,
        "candidate_cost_usd": 1.5,
        "cost_usd_per_kept_row": 0.75,
    }


FUNNEL = [
    ["finished", 3],
    ["with an answer", 3],
    ["not wrong", 2],
    ["verified or allowed unverified", 2],
    ["few enough tool errors", 2],
    ["with turns within limits", 2],
    ["with an answer of the right length", 2],
    ["in the format asked for", 2],
    ["not refused", 2],
    ["in an allowed language", 2],
    ["not repeating itself", 2],
    ["without private data", 2],
    ["without objections", 2],
    ["with scores within limits", 2],
    ["not in an evaluation set", 2],
    ["rendered by the student's template", 2],
    ["short enough", 2],
    ["with something to learn", 2],
    ["as hard as asked for", 2],
    ["not a duplicate", 2],
    ["of a prompt within the pass rates", 2],
    ["preferred in its prompt", 2],
    ["within the quota of its tag", 2],
    ["diverse", 2],
    ["within the target", 2],
]


def test_what_one_row_does_not_report_is_unknown_in_all(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow
) -> None:
    facts = summarise(write_dataset(tmp_path, [kept(1, cost_usd=0.5), kept(2)]), num_repeated=0).facts()
    assert facts["candidate_cost_usd"] is facts["cost_usd_per_kept_row"] is facts["tokens"] is None


def test_no_kept_row_has_no_cost_of_its_own(tmp_path: Path, write_dataset: WriteDataset, rejected: MakeRow) -> None:
    facts = summarise(write_dataset(tmp_path, [rejected(1, "wrong", cost_usd=0.5)]), num_repeated=0).facts()
    assert (facts["candidate_cost_usd"], facts["cost_usd_per_kept_row"], facts["kept"]) == (0.5, None, 0)


def test_duplicates_contamination_and_clusters_are_counted(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow, rejected: MakeRow
) -> None:
    shared = {"set": "gsm8k", "row": 7, "part": "prompt", "text": "a b c"}
    near = {"duplicate_of": "a", "duplicate_kind": "near", "duplicate_similarity": 0.9}
    rows = [
        kept(1, contamination=[], prompt_cluster="p"),
        kept(2, contamination=[{**shared, "ngram": 8}, {**shared, "ngram": 13}], prompt_cluster="p"),
        rejected(3, "near_duplicate", **near, duplicate_source="earlier", prompt_cluster="q"),
        rejected(4, "duplicate", **(near | {"duplicate_kind": "exact"}), prompt_cluster="q"),
    ]
    summary = summarise(write_dataset(tmp_path, rows), num_repeated=0)
    facts = summary.facts()
    assert (facts["near_duplicates"], facts["exact_duplicates"]) == (1, 1)
    assert (facts["contaminated"], facts["clusters"], facts["prompts"]) == (1, 2, 4)
    assert summary.rows_by("overlaps") == [(("gsm8k", 13), (1, 0))]
    assert dict(summary.rows_by("duplicates")) == {("near", "earlier"): (0, 1), ("exact", None): (0, 1)}


def test_rows_that_overlap_with_no_evaluation_set_are_counted_as_none_and_rows_not_compared_as_unknown(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow
) -> None:
    for rows, expected in (([kept(1, contamination=[]), kept(2)], 0), ([kept(1), kept(2)], None)):
        facts = summarise(write_dataset(tmp_path / str(expected), rows), num_repeated=0).facts()
        assert facts["contaminated"] == expected


def test_scores_of_functions_and_of_the_judge_have_distributions(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow, rejected: MakeRow
) -> None:
    rows = [
        kept(1, scores={"reward": 1.0}, judge={"scores": {"clarity": 0.5}, "verdict": None}),
        kept(2, scores={"reward": 0.0, "odd": None}),
        rejected(3, "score_low", scores={"reward": 0.25}, judge={"scores": None}),
    ]
    measured = summarise(write_dataset(tmp_path, rows), num_repeated=0).measures()
    scores = {measure.label: parts for measure, parts in measured if measure.unit == "number"}
    assert {name: (parts.kept.mean, parts.dropped.mean) for name, parts in scores.items()} == {
        "judge/clarity": (0.5, None),
        "reward": (0.5, 0.25),
    }


def test_an_interval_allows_for_several_trajectories_of_a_prompt(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow, rejected: MakeRow
) -> None:
    rows = [
        *(kept(number, prompt_id="easy", tag="sums", verified=True) for number in range(4)),
        *(rejected(number, "wrong", prompt_id="hard", tag="sums", verified=False) for number in range(4, 8)),
        kept(8, tag=None, verified=True),
        kept(9, tag="sums"),
    ]
    verdicts = summarise(write_dataset(tmp_path, rows), num_repeated=0).verdicts
    sums = verdicts.by_tag()["sums"]
    size = effective_sample_size({Group(4, 4): 1, Group(4, 0): 1})
    assert (sums.right, sums.wrong, sums.interval) == (4, 4, wilson_interval(0.5, size, 0.95))
    assert list(verdicts.by_tag()) == ["sums", None]
    overall = verdicts.overall()
    assert overall is not None
    assert (overall.right, overall.wrong) == (5, 4)


def test_tool_calls_are_counted_by_name(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow, rejected: MakeRow
) -> None:
    rows = [
        kept(1, tool_names=["search", "browse", "search"]),
        kept(2, tool_names=[]),
        rejected(3, "wrong", tool_names=["search", None]),
    ]
    calls = summarise(write_dataset(tmp_path, rows), num_repeated=0).rows_by("tool_names")
    assert calls == [("search", (2, 1)), ("browse", (1, 0)), (None, (0, 1))]


def test_files_are_named_with_rows_and_hash(tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow) -> None:
    folder = write_dataset(tmp_path, [kept(1)])
    with TableWriter(folder / "preferences.parquet", PREFERENCE_COLUMNS):
        pass
    files = summarise(folder, num_repeated=0).files
    assert files["train.parquet"] == (1, file_sha256(folder / "train.parquet"))
    assert {name: file.num_rows for name, file in files.items()} == {
        "train.parquet": 1,
        "validation.parquet": 0,
        "rejected.parquet": 0,
        "preferences.parquet": 0,
    }


def test_facts_do_not_depend_on_the_order_of_rows(
    tmp_path: Path, write_dataset: WriteDataset, realistic: Path, realistic_rows: list[Row]
) -> None:
    shuffled = random.Random(3).sample(realistic_rows, len(realistic_rows))
    one, other = (summarise(folder, num_repeated=0) for folder in (realistic, write_dataset(tmp_path, shuffled)))
    assert one.facts() == other.facts()
    assert one.verdicts.by_tag() == other.verdicts.by_tag()


REASONS = ("late", "wrong", "long", "short")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sets(st.sampled_from(REASONS)), st.none() | st.integers(0, 99)), max_size=30))
def test_a_row_leaves_the_funnel_at_the_first_step_that_has_one_of_its_reasons(
    rows: list[tuple[set[str], int | None]],
) -> None:
    steps = [("in time", ["late"]), ("right", ["wrong"]), ("of good length", ["long", "short"])]
    counts = FunnelCounts(steps)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([sorted(reasons) for reasons, _ in rows], pa.list_(pa.string())),
            pa.array([tokens for _, tokens in rows], pa.int64()),
            pa.array([None for _ in rows], pa.int64()),
        ],
        ["drop_reasons", "num_tokens", "completion_tokens"],
    )
    for part in (batch.slice(0, 10), batch.slice(10)):
        counts.add(part)
    left, expected = rows, [("distinct", len(rows), _tokens(rows))]
    for name, reasons in steps:
        left = [row for row in left if not row[0] & set(reasons)]
        expected.append((name, len(left), _tokens(left)))
    expected.append(("kept", len(left), _tokens(left)))
    assert [(step.name, step.num_rows, step.student_tokens) for step in counts.steps()] == expected
    assert counts.reasons() == {
        name: times for name in REASONS if (times := sum(name in reasons for reasons, _ in rows))
    }


def _tokens(rows: list[tuple[set[str], int | None]]) -> int:
    return sum(tokens or 0 for _, tokens in rows)


def test_a_reason_nobody_knows_is_an_error_that_says_so(
    tmp_path: Path, write_dataset: WriteDataset, rejected: MakeRow
) -> None:
    folder = write_dataset(tmp_path, [rejected(1, "ugly")])
    with pytest.raises(InputError, match=r"'ugly'.*expected one of max_turns, length.*build it again"):
        summarise(folder, num_repeated=0)


def test_a_missing_file_a_damaged_one_and_a_missing_column_are_named(
    tmp_path: Path, write_dataset: WriteDataset, kept: MakeRow
) -> None:
    folder = write_dataset(tmp_path, [kept(1)])
    path = folder / "validation.parquet"
    pq.write_table(pq.read_table(folder / "train.parquet").drop_columns(["verified"]), path)
    with pytest.raises(InputError, match=r"validation\.parquet lacks verified"):
        summarise(folder, num_repeated=0)
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match=r"validation\.parquet cannot be read"):
        summarise(folder, num_repeated=0)
    path.unlink()
    with pytest.raises(InputError, match=r"validation\.parquet cannot be read"):
        summarise(folder, num_repeated=0)
