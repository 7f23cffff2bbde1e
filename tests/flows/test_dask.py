"""Labels made by a Dask cluster of two worker processes on this machine."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion
from stillhouse.dataset.read import read_rows
from stillhouse.errors import ConfigError, StillhouseError
from tasks.publish import Published

LABELS = """
import os
from stillhouse.dataset import LabelArgs, label

@label
def elsewhere(args: LabelArgs, messages: list) -> bool:
    return os.getpid() != int(os.environ["STILLHOUSE_TEST_PROCESS"])
"""
pytestmark = pytest.mark.slow


def answer(asked: Asked) -> Reply:
    return Reply(completion(asked.body["messages"][-1]["content"].split()[1]))


@pytest.fixture
def generate(
    generate_from: Callable[..., Published], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Published]]:
    """Runs the flow on 30 prompts in three shards, labelled in two processes, under labels of the test's own."""
    monkeypatch.setenv("STILLHOUSE_TEST_PROCESS", str(os.getpid()))
    rows = [{"prompt": f"question {number}", "tools": []} for number in range(30)]
    file = tmp_path / "labels.py"

    with SimulatedProvider(answer) as provider:

        def run(labels: str = LABELS, **runtime: Any) -> Published:
            file.write_text(labels)
            return generate_from(
                provider.url,
                rows,
                dataset={"labels": {"file": str(file)}, "validation_fraction": 0.0},
                runtime={"store": str(tmp_path), "shard_size": 10, "label_processes": 2, **runtime},
            )

        yield run


def made_in(store: Path) -> dict[str, bytes]:
    """What the labels and the dataset of a store hold, by path."""
    files = [*store.glob("artifacts/labels/*/*.parquet"), *store.glob("artifacts/dataset/*/*.parquet")]
    return {"/".join(file.parts[-3:]): file.read_bytes() for file in files}


def test_the_workers_of_a_cluster_label_as_processes_of_this_machine_do(
    generate: Callable[..., Published], tmp_path: Path
) -> None:
    first = generate(task_runner="dask")
    assert first.dataset is not None
    rows = list(read_rows(Path(first.dataset.uri), "train"))
    assert len(rows) == 30
    assert all(row["scores"] == {"elsewhere": 1.0} for row in rows)
    assert all(generate(task_runner="dask").cached.values())
    made = made_in(tmp_path)
    assert len(made) >= 8
    again = generate(refresh=["labels", "dataset"])
    assert [name for name, cached in again.cached.items() if not cached] == ["labels", "dataset"]
    assert made_in(tmp_path) == made


def test_an_error_of_a_worker_is_the_one_a_user_would_see_here(generate: Callable[..., Published]) -> None:
    with pytest.raises(ConfigError, match=r"labels\.py, line 1: cannot be loaded: ZeroDivisionError"):
        generate("1 / 0", task_runner="dask")


def test_a_scheduler_that_does_not_answer_is_told_of_by_its_setting(generate: Callable[..., Published]) -> None:
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(ConfigError, match=r"runtime\.dask_address: no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
    ):
        generate(task_runner="dask", dask_address="tcp://127.0.0.1:9")


def test_a_shard_that_kills_its_workers_ends_the_run_with_what_to_do(generate: Callable[..., Published]) -> None:
    deadly = LABELS.replace("return os.getpid() != int", "os.kill(os.getpid(), 9) or int")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(StillhouseError, match=r"labels: every Dask worker .* killed.* Give each worker more memory"),
    ):
        generate(deadly, task_runner="dask")
