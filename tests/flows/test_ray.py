"""Rollouts and labels made by the workers of a Ray cluster on this machine."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.dataset.read import read_rows
from stillhouse.errors import BudgetReached, ConfigError
from tasks.publish import Published
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

LABELS = """
import os
from stillhouse.dataset import LabelArgs, label

@label
def elsewhere(args: LabelArgs, messages: list) -> bool:
    return os.getpid() != int(os.environ["STILLHOUSE_TEST_PROCESS"])
"""
TOOLS = """
import os
from stillhouse.tools import tool

@tool
def where() -> str:
    "The process."
    return str(os.getpid())
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Teacher:
    """Asks the tool for its process, then answers with what it said."""

    def __init__(self) -> None:
        self.num_asked = 0

    def __call__(self, request: ReceivedRequest) -> Reply:
        self.num_asked += 1
        last = request.body["messages"][-1]
        if last["role"] == "user":
            return Reply(completion(tool_calls=[("where", "{}")]))
        return Reply(completion(last["content"]))


@pytest.fixture
def teacher() -> Teacher:
    return Teacher()


@pytest.fixture
def generate(
    teacher: Teacher, generate_from, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Published]]:
    """Run the flow on 30 prompts in three shards, on a cluster of two workers."""
    monkeypatch.setenv("STILLHOUSE_TEST_PROCESS", str(os.getpid()))
    (tmp_path / "labels.py").write_text(LABELS)
    (tmp_path / "tools.py").write_text(TOOLS)
    rows = [{"prompt": f"question {number}"} for number in range(30)]

    with SimulatedProvider(teacher) as provider:

        def run(budget: dict[str, Any] | None = None, **runtime: Any) -> Published:
            own = {"store": str(tmp_path / "runs"), "shard_size": 10, "rollout_shards": 2}
            return generate_from(
                provider.url,
                rows,
                tools={"file": str(tmp_path / "tools.py"), "builtin": []},
                dataset={"labels": {"file": str(tmp_path / "labels.py")}, "validation_fraction": 0.0},
                runtime={**own, "task_runner": "ray", **runtime},
                budget=budget or {},
            )

        yield run


def test_workers_sample_and_label_and_all_of_it_is_kept(generate, teacher: Teacher) -> None:
    first = generate()
    assert first.dataset is not None
    rows = list(read_rows(Path(first.dataset.uri), "train"))
    assert len(rows) == 30
    assert all(row["scores"] == {"elsewhere": 1.0} for row in rows)
    processes = {row["messages"][-1]["content"] for row in rows}
    assert str(os.getpid()) not in processes
    assert teacher.num_asked == 60
    assert all(generate().cached.values())
    # In the flow's own process, from the journal that the workers wrote.
    again = generate(task_runner="local", refresh=["rollouts"])
    assert not again.cached["rollouts"]
    assert teacher.num_asked == 60


def test_a_budget_is_divided_among_the_shards_and_none_passes_it(generate, teacher: Teacher) -> None:
    with pytest.raises(BudgetReached, match=r"33\.33%"):
        generate({"max_requests": 30})
    assert 20 <= teacher.num_asked <= 30
    assert generate().dataset is not None
    assert teacher.num_asked == 60


def test_a_cluster_that_does_not_answer_is_told_of_by_its_setting(generate) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.ray_address.*127\.0\.0\.1:9"):
        generate(ray_address="127.0.0.1:9")
