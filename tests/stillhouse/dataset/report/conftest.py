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
from stillhouse.inference.endpoint import Price

Row = dict[str, Any]
_TAGS = ("arithmetic", "algebra", "geometry", "probability", "word problems, two steps", None)
_TOOLS = ("calculator", "browse", "python")


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


def _realistic(number: int, draw: random.Random) -> Row:
    tag = draw.choices(_TAGS, (30, 24, 16, 12, 10, 8))[0]
    num_calls = min(draw.choices((0, 1, 2, 3, 6), (25, 40, 20, 12, 3))[0], 6)
    tokens = int(draw.lognormvariate(6.1, 0.7)) + 40
    right = draw.random() < {"arithmetic": 0.97, "algebra": 0.83, "geometry": 0.61}.get(tag or "", 0.74)
    verdict = None if tag is None or draw.random() < 0.04 else right
    prompt = number // 3
    answer = draw.randint(2, 4000)
    messages = _conversation(number, num_calls, answer, draw)
    values = row(
        number,
        prompt_id=f"{prompt * 2654435761 % 2**32:08x}" * 8,
        sample_index=number % 3,
        messages=messages,
        expected_answer=str(answer if right else answer + 3),
        tag=tag,
        teacher="Qwen/Qwen3-32B" if number % 9 else "Qwen/Qwen3-235B-A22B",
        sampling="9f2c4b7a01d3" * 5,
        providers=[draw.choice(("DeepInfra", "Together"))],
        turns=num_calls + 1,
        num_tool_calls=num_calls,
        tool_names=[call["function"]["name"] for one in messages for call in one.get("tool_calls", ())],
        num_tool_errors=int(num_calls > 0 and draw.random() < 0.06),
        prompt_tokens=tokens * 2,
        completion_tokens=tokens,
        reasoning_tokens=tokens // 2,
        cached_tokens=tokens // 3,
        cost_usd=tokens * 8e-7 + 1e-5,
        latency_s=draw.lognormvariate(1.2, 0.8),
        verifier=None if tag is None else draw.choice(("numeric", "math", "judge")),
        verified=verdict,
        verification=None if verdict is not False else f"got {answer}, expected {answer + 3}",
        prompt_chars=draw.randint(60, 700),
        answer_chars=int(draw.lognormvariate(5, 0.9)) + 5,
        sampled_chars=tokens * 4,
        language=draw.choices(("en", "de", "zh", "fr", None), (88, 5, 4, 2, 1))[0],
        repetition=min(1.0, draw.betavariate(1.2, 14)),
        compression_ratio=draw.gauss(0.46, 0.06),
        refusal="I cannot help with that" if draw.random() < 0.01 else None,
        format_problem="answer holds no \\boxed{...}" if draw.random() < 0.03 else None,
        private_data=["email"] if draw.random() < 0.012 else [],
        scores={"reward": round(draw.random() ** 0.4, 3), "reward/brevity": round(draw.random(), 3)},
        judge={"scores": {"clarity": draw.choice((0.4, 0.6, 0.8, 1.0)), "rigour": draw.choice((0.2, 0.6, 0.8))}},
        objections=[],
        contamination=_contamination(draw),
        num_tokens=tokens + 180,
        num_supervised_tokens=tokens,
        prompt_cluster=f"{prompt // 2 * 2 * 2654435761 % 2**32:08x}" * 8,
        pass_rate=draw.choice((0.0, 1 / 3, 2 / 3, 1.0)),
        student_nll=draw.lognormvariate(-0.4, 0.4),
        student_pass_rate=draw.choice((0.0, 0.25, 0.5, 0.75, 1.0)),
    )
    if draw.random() < 0.05 and number > 40:
        near = draw.random() < 0.7
        earlier = "math-2025-11" if draw.random() < 0.2 else None
        values |= {
            "duplicate_of": f"{number - 37:064x}",
            "duplicate_kind": "near" if near else "exact",
            "duplicate_similarity": draw.uniform(0.86, 0.99) if near else 1.0,
            "duplicate_source": earlier,
        }
    return _decided(values, draw)


def _decided(values: Row, draw: random.Random) -> Row:
    reasons = []
    ending = draw.choices(("answered", "length", "error", "max_turns"), (93, 4, 1.5, 1.5))[0]
    if ending != "answered":
        reasons.append(ending)
        values |= {"stop_reason": ending, "verified": None, "has_answer": False, "answer_chars": None}
    if values["verified"] is False:
        reasons.append("wrong")
    if values["num_tool_errors"]:
        reasons.append("tool_errors")
    for column, reason in (("refusal", "refusal"), ("format_problem", "format")):
        if values[column] is not None:
            reasons.append(reason)
    if values["contamination"]:
        reasons.append("contaminated")
    if values["num_tokens"] > 2048:
        reasons.append("too_long")
    if values["duplicate_kind"] is not None:
        reasons.append("near_duplicate" if values["duplicate_kind"] == "near" else "duplicate")
    if not reasons and draw.random() < 0.08:
        reasons.append("not_preferred")
    split = None if reasons else "validation" if int(values["prompt_id"][:4], 16) % 20 == 0 else "train"
    return values | {"drop_reasons": reasons, "kept": not reasons, "split": split}


def _contamination(draw: random.Random) -> list[Row]:
    if draw.random() > 0.012:
        return []
    words = "a train leaves the station at nine and travels for three hours at a steady speed of sixty"
    long = draw.random() < 0.3
    found = {"set": draw.choice(("gsm8k", "math500")), "row": draw.randint(1, 1319), "part": "prompt"}
    shared = words if long else " ".join(words.split()[:8])
    return [{**found, "ngram": 13 if long else 8, "text": shared}]


def _conversation(number: int, num_calls: int, answer: int, draw: random.Random) -> list[Row]:
    things = draw.choice(("apples", "train tickets", "square tiles", "litres of paint", "stamps"))
    messages: list[Row] = [
        {"role": "system", "content": "You are a careful assistant. Use the tools for every calculation."},
        {
            "role": "user",
            "content": f"A shop sells {things} at {number % 90 + 3} coins each. Mara pays for {answer % 17 + 2} of "
            f"them with a note of 500. How many coins does she get back, and how many more could she buy?",
        },
    ]
    for call in range(num_calls):
        arguments = {"expression": f"500 - {number % 90 + 3} * {answer % 17 + call}"}
        function = {"name": draw.choice(_TOOLS), "arguments": arguments}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "The price times the number first, then what is left of the note.",
                "tool_calls": [{"id": f"call_{call}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"call_{call}", "content": str(draw.randint(1, 500))},
        ]
    final = f"She gets **{answer}** coins back.\n\n1. The price is {number % 90 + 3} coins.\n2. The rest follows."
    return [*messages, {"role": "assistant", "content": final}]


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
