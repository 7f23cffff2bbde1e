"""Files of a user that are malformed in every way: one error that says where, and nothing paid for is lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.errors import ConfigError, InputError, StillhouseError
from tasks.publish import Published
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

ROWS = [{"prompt": f"question {number}", "tools": [], "metadata": {"tag": "sums"}} for number in range(3)]
LABELS = """
from stillhouse.dataset import LabelArgs, label

@label
def {}(args: LabelArgs, messages: list) -> float:
    {}
"""


def answer(request: ReceivedRequest) -> Reply:
    return Reply(completion("answer to " + request.body["messages"][-1]["content"]))


@pytest.fixture
def generate(
    provider: SimulatedProvider, generate_from, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Published]:
    """Run the flow in a folder that holds `files`, text or bytes or columns by name."""
    monkeypatch.chdir(tmp_path)

    def run(files: dict[str, Any], rows: list[Any] = ROWS, **sections: Any) -> Published:
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, dict):
                pq.write_table(pa.table(content), name)
            else:
                Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        sections["dataset"] = {"validation_fraction": 0.0, "labels": {"render": False}, **sections.get("dataset", {})}
        return generate_from(provider.url, rows, **sections)

    return run


class Case(NamedTuple):
    """A user's input, and the error it gets."""

    message: str
    dataset: dict[str, Any] = {}
    files: dict[str, Any] = {}
    kind: type[StillhouseError] = InputError


def labels(file: str, message: str, content: str | None = None) -> Case:
    files = {} if content is None else {file: content}
    return Case(message, {"labels": {"file": file, "render": False}}, files, ConfigError)


def sets(file: str, message: str, content: Any = None, kind: type[StillhouseError] = InputError) -> Case:
    return Case(message, {"contamination": {"mmlu": file}}, {} if content is None else {file: content}, kind)


def earlier(file: str, message: str, content: Any = None) -> Case:
    return Case(message, {"duplicates": {"earlier": [file]}}, {} if content is None else {file: content})


LONG = json.dumps({"question": "one two three four five six seven eight nine"}) + "\n"


@pytest.mark.parametrize(
    "case",
    [
        sets("e.jsonl", r"contamination\.mmlu: e\.jsonl"),
        sets("e.dat", r"contamination\.mmlu = 'e\.dat'", "x", ConfigError),
        sets("e.jsonl", r"e\.jsonl, line 2: .*'\{torn'", LONG + "{torn"),
        sets("e.csv", r"e\.csv, line 3: .* 2 ", "a,b\n1,2\n3\n"),
        sets("e.parquet", r"e\.parquet", b"PAR1"),
        earlier("old", r"earlier.* old,"),
        earlier("old.parquet", r"old\.parquet.* a;", {"a": [1]}),
        earlier("old.parquet", r"old\.parquet, row 1: .*\['\{torn'\]",
                {"messages": [['{"role": "user", "content": "hi"}'], ["{torn"]]}),
        labels("l.py", r"l\.py: .*dataset\.labels\.file"),
        labels("l.py", r"l\.py, line 2: .*ZeroDivisionError", "\n1 / 0\n"),
        labels("l.py", r"l\.py, line 1: .*SystemExit: 5", "raise SystemExit(5)\n"),
        Case(r"'taste'.*'test'",
             {"labels": {"file": "l.py", "render": False}, "filters": {"scores": {"taste": [0.5, None]}}},
             {"l.py": LABELS.format("test", "return 1.0")}, ConfigError),
        Case(r"quotas .*'sum'.*'sums'",
             {"selection": {"quotas": {"sum": 3}}}, {}, ConfigError),
    ],
)  # fmt: skip
def test_one_error_names_file_row_value_and_remedy(generate, provider: SimulatedProvider, case: Case) -> None:
    with pytest.raises(case.kind, match=f"(?s){case.message}"):
        generate(case.files, dataset=case.dataset)
    assert len(provider.ledger) in {0, len(ROWS)}


def test_prompts_that_are_all_held_out_are_an_error_before_anything_is_asked(
    generate, provider: SimulatedProvider
) -> None:
    with pytest.raises(InputError, match=r"held_out_fraction = 0\.999999"):
        generate({}, prompts={"held_out_fraction": 0.999999})
    assert len(provider.ledger) == 0


def test_answers_are_kept_where_a_mistake_is_found_after_them(generate, provider: SimulatedProvider) -> None:
    with pytest.raises(ConfigError, match=r"'sum'.*'sums'"):
        generate({}, dataset={"selection": {"quotas": {"sum": 3}}})
    assert len(provider.ledger) == len(ROWS)
    assert generate({}).dataset is not None
    assert len(provider.ledger) == len(ROWS)


def test_a_label_that_fails_costs_its_score_alone(generate) -> None:
    published = generate(
        {"l.py": LABELS.format("fails", "raise ValueError('no')")},
        dataset={"labels": {"file": "l.py", "render": False}},
    )
    assert published.dataset is not None
    assert published.dataset.num_rows == len(ROWS)


def test_malformed_prompts_and_trajectories_within_the_budget_are_counted_and_the_rest_goes_on(
    generate, tmp_path: Path, provider: SimulatedProvider
) -> None:
    rows = [*ROWS, {"prompt": 5}, {"messages": []}, ROWS[0]]
    first = generate({}, rows, runtime={"failure_budget": 0.5})
    assert first.summary[0][-1] == "3 + 0 held out, 2 malformed, 1 repeated"
    asked = len(provider.ledger)
    (shard,) = (tmp_path / "runs" / "artifacts" / "rollouts").iterdir()
    lines = (shard / "trajectories.jsonl").read_text().splitlines()
    Path("t.jsonl").write_text("\n".join([lines[0], "[1]", "", lines[1], '{"turns": 1}', lines[2][:-9]]))
    given = {"rollouts": {"trajectories_file": "t.jsonl"}, "runtime": {"failure_budget": 0.6}}
    second = generate({}, rows[1:], **given)
    assert second.summary[1][-1] == "2 done, 0 failed, 3 malformed"
    third = generate({}, ROWS[:1], **given)
    assert third.summary[1][-1] == "1 done, 0 failed, 3 malformed, 1 of other prompts"
    with pytest.raises(InputError, match=r"(?s)3 of 5 .*t\.jsonl, line 2: .*line 6: "):
        generate({}, **{**given, "runtime": {"failure_budget": 0.5}})
    assert len(provider.ledger) == asked
