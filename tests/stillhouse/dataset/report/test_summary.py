import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.dataset.report.figures import FunnelCounts
from stillhouse.dataset.report.summary import summarise
from stillhouse.dataset.select.reasons import STEPS
from stillhouse.errors import InputError
from stillhouse.store.fingerprint import file_sha256
from stillhouse.verification.intervals import Group, effective_sample_size, wilson_interval

FUNNEL = [["finished", 3], ["with an answer", 3], *([step, 2] for step, _ in STEPS[2:])]


def test_facts_of_a_small_dataset(data: Any) -> None:
    used = {"completion_tokens": 10, "cost_usd": 0.5, "num_tokens": 30, "num_supervised_tokens": 9}
    rows = [
        data.kept(1, verified=True, **used),
        data.kept(2, verified=None, split="validation", **used),
        data.dropped(3, "wrong", "too_long", verified=False, **used),
        data.dropped(4, "error", stop_reason="error", turns=0),
    ]
    assert data.summary(rows, num_repeated=2).facts() == {
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


def test_sums_are_unknown_where_one_row_reports_nothing_or_no_row_is_kept(data: Any) -> None:
    facts = data.summary([data.kept(1, cost_usd=0.5), data.kept(2)]).facts()
    assert facts["candidate_cost_usd"] is facts["cost_usd_per_kept_row"] is facts["tokens"] is None
    facts = data.summary([data.dropped(1, "wrong", cost_usd=0.5)]).facts()
    assert (facts["candidate_cost_usd"], facts["cost_usd_per_kept_row"], facts["kept"]) == (0.5, None, 0)


def test_duplicates_contamination_and_clusters_are_counted(data: Any) -> None:
    shared = {"set": "gsm8k", "row": 7, "part": "prompt", "text": "a b c"}
    near = {"duplicate_of": "a", "duplicate_kind": "near", "duplicate_similarity": 0.9}
    rows = [
        data.kept(1, contamination=[], prompt_cluster="p"),
        data.kept(2, contamination=[{**shared, "ngram": 8}, {**shared, "ngram": 13}], prompt_cluster="p"),
        data.dropped(3, "near_duplicate", **near, duplicate_source="earlier", prompt_cluster="q"),
        data.dropped(4, "duplicate", **(near | {"duplicate_kind": "exact"}), prompt_cluster="q"),
    ]
    summary = data.summary(rows)
    facts = summary.facts()
    assert (facts["near_duplicates"], facts["exact_duplicates"]) == (1, 1)
    assert (facts["contaminated"], facts["clusters"], facts["prompts"]) == (1, 2, 4)
    assert summary.rows_by("overlaps") == [(("gsm8k", 13), (1, 0))]
    assert dict(summary.rows_by("duplicates")) == {("near", "earlier"): (0, 1), ("exact", None): (0, 1)}
    assert data.summary([data.kept(1, contamination=[]), data.kept(2)]).facts()["contaminated"] == 0


def test_scores_of_functions_and_of_the_judge_have_distributions(data: Any) -> None:
    rows = [
        data.kept(1, scores={"reward": 1.0}, judge={"scores": {"clarity": 0.5}, "verdict": None}),
        data.kept(2, scores={"reward": 0.0, "odd": None}),
        data.dropped(3, "score_low", scores={"reward": 0.25}, judge={"scores": None}),
    ]
    measured = data.summary(rows).measures()
    scores = {measure.title: parts for measure, parts in measured if measure.unit == "number"}
    assert {name: (parts.kept.mean, parts.dropped.mean) for name, parts in scores.items()} == {
        "judge/clarity": (0.5, None),
        "reward": (0.5, 0.25),
    }


def test_an_interval_allows_for_several_trajectories_of_a_prompt(data: Any) -> None:
    rows = [
        *(data.kept(number, prompt_id="easy", tag="sums", verified=True) for number in range(4)),
        *(data.dropped(number, "wrong", prompt_id="hard", tag="sums", verified=False) for number in range(4, 8)),
        data.kept(8, tag=None, verified=True),
        data.kept(9, tag="sums"),
    ]
    verdicts = data.summary(rows).verdicts
    sums = verdicts.by_tag()["sums"]
    size = effective_sample_size({Group(4, 4): 1, Group(4, 0): 1})
    assert (sums.right, sums.wrong, sums.interval) == (4, 4, wilson_interval(0.5, size))
    assert list(verdicts.by_tag()) == ["sums", None]
    overall = verdicts.overall()
    assert overall is not None
    assert (overall.right, overall.wrong) == (5, 4)


def test_tool_calls_are_counted_by_name(data: Any) -> None:
    rows = [
        data.kept(1, tool_names=["search", "browse", "search"]),
        data.kept(2, tool_names=[]),
        data.dropped(3, "wrong", tool_names=["search", None]),
    ]
    calls = data.summary(rows).rows_by("tool_names")
    assert calls == [("search", (2, 1)), ("browse", (1, 0)), (None, (0, 1))]


def test_files_are_named_with_rows_and_hash(data: Any) -> None:
    folder = data.write([data.kept(1)])
    files = summarise(folder, num_repeated=0).files
    assert files["train.parquet"] == (1, file_sha256(folder / "train.parquet"))
    assert {name: file.num_rows for name, file in files.items()} == {
        "train.parquet": 1,
        "validation.parquet": 0,
        "rejected.parquet": 0,
    }


def test_facts_do_not_depend_on_the_order_of_rows(data: Any, realistic: Path, realistic_rows: list[Any]) -> None:
    shuffled = random.Random(3).sample(realistic_rows, len(realistic_rows))
    one, other = (summarise(folder, num_repeated=0) for folder in (realistic, data.write(shuffled)))
    assert one.facts() == other.facts()
    assert one.verdicts.by_tag() == other.verdicts.by_tag()


REASONS = ("late", "wrong", "long", "short")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sets(st.sampled_from(REASONS)), st.none() | st.integers(0, 99)), max_size=30))
def test_a_row_leaves_the_funnel_at_the_first_step_of_its_reasons(rows: list[tuple[set[str], int | None]]) -> None:
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


def test_a_reason_nobody_knows_is_an_error_that_says_so(data: Any) -> None:
    folder = data.write([data.dropped(1, "ugly")])
    with pytest.raises(InputError, match=r"'ugly'.*max_turns, length"):
        summarise(folder, num_repeated=0)


def test_a_missing_file_a_damaged_one_and_a_missing_column_are_named(data: Any) -> None:
    folder = data.write([data.kept(1)])
    path = folder / "validation.parquet"
    pq.write_table(pq.read_table(folder / "train.parquet").drop_columns(["verified"]), path)
    with pytest.raises(InputError, match=r"validation\.parquet .*verified"):
        summarise(folder, num_repeated=0)
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match=r"validation\.parquet"):
        summarise(folder, num_repeated=0)
    path.unlink()
    with pytest.raises(InputError, match=r"validation\.parquet"):
        summarise(folder, num_repeated=0)
