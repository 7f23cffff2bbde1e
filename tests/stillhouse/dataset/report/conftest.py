"""Datasets to summarise: a few thousand rows with everything measured, three rows, and rows with nothing measured."""

import json
import random
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.summary import DatasetSummary, summarise
from stillhouse.dataset.schema import COLUMNS, JSON_COLUMNS, JSON_LIST_COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.inference.price import Price

Row = dict[str, Any]


def row(number: int, **changes: Any) -> Row:
    """A right and finished row with nothing measured but what every trajectory says; JSON columns as objects."""
    values: Row = dict.fromkeys(column.name for column in COLUMNS)
    values |= {
        "id": f"{number:064x}",
        "prompt_id": f"{number:08x}" * 8,
        "sample_index": 0,
        "messages": [
            {"role": "user", "content": f"What is {number} + 2?"},
            {"role": "assistant", "content": f"The answer is {number + 2}."},
        ],
        "tools": [],
        "arguments": [],
        "metadata": {},
        "teacher": "teacher",
        "providers": [],
        "request_ids": [],
        "turns": 1,
        "num_tool_calls": 0,
        "num_tool_errors": 0,
        "tool_names": [],
        "stop_reason": "answered",
        "latency_s": 1.5,
        "has_answer": True,
        "kept": True,
        "drop_reasons": [],
        "split": "train",
    }
    return values | changes


def _write(folder: Path, rows: Iterable[Row]) -> Path:
    """Writes rows to the file they belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    by_file: dict[str, list[Row]] = {"train": [], "validation": [], "rejected": []}
    for values in rows:
        by_file[values["split"] or "rejected"].append(values)
    for name, of_file in by_file.items():
        with TableWriter(folder / f"{name}.parquet", COLUMNS) as writer:
            for values in of_file:
                writer.write({key: _encoded(key, value) for key, value in values.items()})
    return folder


def _encoded(name: str, value: Any) -> Any:
    if value is not None and name in JSON_LIST_COLUMNS:
        return [json.dumps(item, separators=(",", ":")) for item in value]
    return json.dumps(value) if value is not None and name in JSON_COLUMNS else value


@pytest.fixture(scope="session")
def realistic_rows() -> list[Row]:
    """Rows as a run with tools, judge and all labels leaves them."""
    draw = random.Random(7)
    return [_realistic(number, draw) for number in range(2000)]


_TAGS = ("arithmetic", "algebra", "geometry", "probability", "word problems, two steps", None)
_SHARED = {"set": "gsm8k", "row": 7, "part": "prompt", "ngram": 13, "text": "a train leaves the station at nine"}
_FAULTS: dict[str, Row] = {
    "length": {"stop_reason": "length", "verified": None, "has_answer": False, "answer_chars": None},
    "wrong": {"verified": False, "compared": "5", "expected_answer": "8"},
    "tool_errors": {"num_tool_errors": 1},
    "refusal": {"refusal": "I cannot help with that"},
    "format": {"format_problem": "answer holds no \\boxed{...}"},
    "contaminated": {"contamination": [_SHARED]},
    "near_duplicate": {"duplicate_kind": "near", "duplicate_similarity": 0.91, "duplicate_source": "math-2025-11"},
    "duplicate": {"duplicate_kind": "exact", "duplicate_similarity": 1.0},
    "not_preferred": {},
}


def _realistic(number: int, draw: random.Random) -> Row:
    fault = draw.choice(tuple(_FAULTS)) if draw.random() < 0.3 else None
    tag, tokens, prompt = draw.choice(_TAGS), int(draw.lognormvariate(6.1, 0.7)) + 40, number // 3
    num_calls = draw.choice((0, 1, 2, 3))
    values = row(
        number,
        prompt_id=f"{prompt * 2654435761 % 2**32:08x}" * 8,
        sample_index=number % 3,
        messages=_conversation(number, num_calls),
        expected_answer="8",
        tag=tag,
        teacher="Qwen/Qwen3-32B" if number % 9 else "Qwen/Qwen3-235B-A22B",
        sampling="9f2c4b7a01d3" * 5,
        providers=[draw.choice(("DeepInfra", "Together"))],
        turns=num_calls + 1,
        num_tool_calls=num_calls,
        tool_names=["calculator"] * num_calls,
        prompt_tokens=tokens * 2,
        completion_tokens=tokens,
        reasoning_tokens=tokens // 2,
        cached_tokens=tokens // 3,
        cost_usd=tokens * 8e-7 + 1e-5,
        latency_s=draw.lognormvariate(1.2, 0.8),
        verifier=draw.choice(("numeric", "math", "judge")),
        verified=None if tag is None else True,
        prompt_chars=draw.randint(60, 700),
        answer_chars=int(draw.lognormvariate(5, 0.9)) + 5,
        sampled_chars=tokens * 4,
        language=draw.choice(("en", "en", "de", "zh", None)),
        repetition=draw.betavariate(1.2, 14),
        compression_ratio=draw.gauss(0.46, 0.06),
        private_data=["email"] if draw.random() < 0.012 else [],
        scores={"reward": round(draw.random() ** 0.4, 3), "reward/brevity": round(draw.random(), 3)},
        judge={"scores": {"clarity": draw.choice((0.4, 0.6, 0.8, 1.0)), "rigour": draw.choice((0.2, 0.6, 0.8))}},
        objections=[],
        contamination=[],
        num_tokens=tokens + 180,
        num_supervised_tokens=tokens,
        prompt_cluster=f"{prompt // 2 * 2 * 2654435761 % 2**32:08x}" * 8,
        pass_rate=draw.choice((0.0, 1 / 3, 2 / 3, 1.0)),
        student_nll=draw.lognormvariate(-0.4, 0.4),
        student_pass_rate=draw.choice((0.0, 0.25, 0.5, 0.75, 1.0)),
    )
    if fault is None:
        return values | {"split": "validation" if prompt % 20 == 0 else "train"}
    repeated = {"duplicate_of": f"{max(number - 37, 0):064x}"} if "duplicate" in fault else {}
    return values | _FAULTS[fault] | repeated | {"drop_reasons": [fault], "kept": False, "split": None}


def _conversation(number: int, num_calls: int) -> list[Row]:
    question = f"A shop sells stamps at {number % 90 + 3} coins each. How many coins of 500 are left after one?"
    messages: list[Row] = [
        {"role": "system", "content": "You are a careful assistant. Use the tools for every calculation."},
        {"role": "user", "content": question},
    ]
    for call in range(num_calls):
        function = {"name": "calculator", "arguments": {"expression": f"500 - {number % 90 + 3}"}}
        calls = [{"id": f"call_{call}", "type": "function", "function": function}]
        messages += [
            {"role": "assistant", "content": None, "reasoning_content": "The price first.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"call_{call}", "content": str(497 - number % 90)},
        ]
    return [*messages, {"role": "assistant", "content": f"**{497 - number % 90}** coins.\n\n1. The rest follows."}]


@pytest.fixture(scope="session")
def realistic(tmp_path_factory: pytest.TempPathFactory, realistic_rows: list[Row]) -> Path:
    """The folder of a dataset of 2,000 rows."""
    return _write(tmp_path_factory.mktemp("realistic"), realistic_rows)


class Data:
    """Makes rows from their number and what differs, and datasets of them in folders of their own."""

    def __init__(self, root: Path) -> None:
        self._folders = (root / str(number) for number in count())

    kept = staticmethod(row)

    @staticmethod
    def dropped(number: int, *reasons: str, **changes: Any) -> Row:
        return row(number, kept=False, split=None, drop_reasons=list(reasons), **changes)

    def write(self, rows: Iterable[Row]) -> Path:
        return _write(next(self._folders), rows)

    def summary(self, rows: Iterable[Row], num_repeated: int = 0) -> DatasetSummary:
        return summarise(self.write(rows), num_repeated=num_repeated)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "datasets")


@pytest.fixture(scope="session")
def origin() -> Origin:
    """The origin of all datasets here."""
    return Origin(
        config=DatasetConfig(),
        code_version="1.2.3",
        student="Qwen/Qwen3-1.7B",
        max_tokens=2048,
        price=Price(0.1, 0.8),
        lineage={"prompts": "a" * 64, "rollouts": "b" * 64},
    )
