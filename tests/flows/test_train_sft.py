"""SFT by itself, on conversations that are there already: no prompts, no teacher."""

import fcntl
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from stillhouse.tracking.client import default_uri
from tasks.publish import Published

NUM_ROWS = 12


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "conversations.jsonl"
    rows = [
        [{"role": "user", "content": f"What is {n} + 1?"}, {"role": "assistant", "content": f"The answer is {n + 1}."}]
        for n in range(NUM_ROWS - 1)
    ]
    rows.append([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1 2 3 4 5 6 7 8 9 " * 30}])
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    return path


@pytest.fixture(scope="module")
def settings(conversations: Path) -> dict[str, Any]:
    return {
        "sft__dataset_weight": 0.0,
        "sft__sources": [{"path": str(conversations), "validation_share": 0.3}],
        "sft__batch_size": 4,
        "sft__num_epochs": 2,
        "sft__trainer__validate_every_steps": 1,
        "sft__trainer__keep": "best",
        "student__parameters": "lora",
        "student__lora_rank": 4,
        "student__max_length": 128,
        "student__merge": True,
        "tracking__register_as": "counter",
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sft") / "store"


@pytest.fixture(scope="module")
def train(store: Path, settings: dict[str, Any], smoke_config) -> Callable[..., Published]:
    from flows.train_sft import train_sft

    return lambda place=store: train_sft(smoke_config(place, **settings))


@pytest.fixture(scope="module")
def trained(train) -> Published:
    return train()


def test_sources_alone_need_neither_prompts_nor_teacher_and_a_row_that_was_cut_is_counted(trained: Published) -> None:
    assert list(trained.cached) == ["sft"]
    assert trained.dataset is None
    assert trained.students["sft"].facts["truncated_rows"] == 1


def test_the_student_has_its_card_and_weights_merged_and_checked(trained: Published) -> None:
    folder = Path(trained.students["sft"].uri)
    assert (folder / "adapter_model.safetensors").is_file()
    assert (folder / "README.md").read_text().startswith("---\n")
    merged = json.loads((folder / "merged" / "student.json").read_text())["merged"]
    assert merged["difference"] <= merged["tolerance"]


def test_the_student_is_a_version_in_the_registry_under_the_alias(trained: Published, store: Path) -> None:
    version = MlflowClient(default_uri(store)).get_model_version_by_alias("counter", "candidate")
    assert version.run_id == trained.students["sft"].facts["mlflow_run_id"]
    assert "/models/counter/versions/" in trained.pages["model"]


def test_the_best_weights_are_those_of_the_lowest_validation_loss(trained: Published) -> None:
    student = trained.students["sft"]
    rows = [json.loads(line) for line in (Path(student.uri) / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["metrics"]["sft/validation_loss"] for row in rows if row["step"] > 0}
    assert len(losses) == student.facts["steps"]
    assert losses[student.facts["best_step"]] == min(losses.values())


def test_a_training_belongs_to_one_flow(train, tmp_path: Path) -> None:
    def is_held() -> bool:
        deadline = time.monotonic() + 60
        while not (jobs := list(tmp_path.glob("training/*/job.json"))) and time.monotonic() < deadline:
            time.sleep(0.01)
        with (jobs[0].parent / "flow" / "lock").open() as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(is_held)
        train(tmp_path)
        assert held.result()


def test_the_same_rows_are_not_trained_on_again(trained: Published, train) -> None:
    again = train()
    assert again.cached == {"sft": True}
    assert again.students == trained.students


@pytest.mark.slow
def test_other_rows_in_the_same_file_are_trained_on(trained: Published, conversations: Path, train) -> None:
    conversations.write_text("".join(conversations.read_text().splitlines(keepends=True)[:-1]))
    changed = train()
    assert changed.cached == {"sft": False}
    assert "truncated_rows" not in changed.students["sft"].facts
