"""Self-training after a few rollouts of a teacher: what is learnt, what is asked, and what a kill leaves."""

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from benchmarks.shop_teacher import append_prompts, shop_teacher
from examples.embedded.shop import draw_stories
from stillhouse.config import DistillConfig, parse_config
from stillhouse.dataset.read import read_rows
from stillhouse.errors import InputError
from tests.provider import SimulatedProvider

NUM_STORIES = 48
STILLHOUSE = Path(sys.executable).parent / "stillhouse"


@pytest.fixture
def teacher() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(shop_teacher(list(stories()), [])) as provider:
        yield provider


def stories() -> Iterator[Any]:
    return islice(draw_stories(random.Random(7), reserved=True), NUM_STORIES)


@pytest.fixture
def body(tmp_path: Path, teacher: SimulatedProvider, shop_config: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    append_prompts(tmp_path / "prompts.jsonl", list(stories()))
    key = {"api_key_env": "STILLHOUSE_TEST_KEY"}
    made = shop_config(tmp_path / "prompts.jsonl", tmp_path / "store", teacher.url, runtime=key)
    made["rollouts"]["max_prompts"] = 12
    made["evaluation"] = {**made.get("evaluation", {}), "enabled": False}
    made["promotion"] = {"enabled": False}
    return made | {"self_training": {"enabled": True, "num_rounds": 2, "prompts_per_round": 16, "num_epochs": 3}}


def run(body: dict[str, Any]) -> Any:
    from flows.distill import distill

    config: DistillConfig = parse_config(body, origin="self-training")
    return distill(config)


def row_of(published: Any, stage: str) -> str:
    return next(row for row in published.summary if row[0] == stage)[-1]


def own_rows(published: Any, store: Path) -> list[dict[str, Any]]:
    """Return the kept rows of all rounds, without those of the teacher's rollouts."""
    folders = [path.parent for path in (store / "artifacts" / "dataset").glob("*/train.parquet")]
    return [row for folder in folders if str(folder) != published.dataset.uri for row in read_rows(folder, "train")]


def test_the_student_learns_those_of_its_trajectories_that_are_right_and_the_teacher_is_not_asked(
    body: dict[str, Any], teacher: SimulatedProvider
) -> None:
    published = run(body)
    assert list(published.students) == ["sft", "self_training"]
    num_right, num_played = map(int, re.findall(r"\d+", row_of(published, "own rollouts")))
    assert num_played == 32
    assert 0 < num_right < 32
    assert len(teacher.ledger) == sum(row["turns"] for row in read_rows(Path(published.dataset.uri), "train"))
    assert published.dataset.num_rows == 12, "of the teacher's own rollouts alone"
    rows = own_rows(published, Path(body["runtime"]["store"]))
    assert len(rows) == num_right
    assert all(row["verified"] and row["teacher"] != "simulated" for row in rows)

    num_requests = len(teacher.ledger)
    again = run(body)
    assert all(again.cached.values())
    assert len(teacher.ledger) == num_requests
    assert again.students["self_training"].fingerprint == published.students["self_training"].fingerprint


def test_rounds_in_which_nothing_is_right_leave_the_student_as_it_is(body: dict[str, Any]) -> None:
    # No answer is the number alone; the teacher's are learnt all the same.
    body["prompts"]["verifier"] = "exact"
    body["dataset"]["filters"] = {"drop_wrong": False}
    body["self_training"]["num_rounds"] = 1
    published = run(body)
    assert list(published.students) == ["sft"]
    assert row_of(published, "own rollouts") == "0 of 16 right"


def test_answers_that_nothing_verifies_end_the_run_with_the_remedy(body: dict[str, Any]) -> None:
    body["prompts"]["verifier"] = "judge"
    with pytest.raises(InputError, match=r"nothing verifies any of the 16 trajectories of round 1.*expected_answer"):
        run(body)


@contextmanager
def process(folder: Path, body: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `stillhouse distill` on the config; no process of it stays behind."""
    (folder / "config.yaml").write_text(yaml.safe_dump(body))
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(
            [STILLHOUSE, "distill", "config.yaml"], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_kill_9_at_random_places_pays_nothing_twice_and_ends_with_the_same_student(
    body: dict[str, Any], teacher: SimulatedProvider, tmp_path: Path
) -> None:
    body["runtime"] |= {"max_concurrency": 1, "concurrency": 1}
    chance, store = random.Random(1), Path(body["runtime"]["store"])
    num_kills = 0
    while num_kills < 20:
        with process(tmp_path, body) as running:
            if ended_within(running, chance.uniform(4.0, 12.0)):
                break
            children = psutil.Process(running.pid).children(recursive=True)
            os.kill(running.pid, signal.SIGKILL)
            psutil.wait_procs(children, timeout=15)
            num_kills += 1
    with process(tmp_path, body) as running:
        assert running.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    assert num_kills >= 5
    again = sum(teacher.billed.values()) - len(teacher.billed)
    assert again <= num_kills, "an answer that a kill met on its way, one at a time, is asked for again"

    calm = tmp_path / "calm"
    calm.mkdir()
    with (
        closing(sqlite3.connect(f"file:{store / 'journal.sqlite3'}?mode=ro", uri=True)) as journal,
        closing(sqlite3.connect(calm / "journal.sqlite3")) as copy,
    ):
        journal.backup(copy)
    num_requests = len(teacher.ledger)
    body["runtime"]["store"] = str(calm)
    with process(tmp_path, body) as running:
        assert running.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    assert len(teacher.ledger) == num_requests
    weights = [sorted(students(folder)) for folder in (store, calm)]
    assert weights[0] == weights[1]
    shutil.rmtree(calm)


def ended_within(running: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        return running.wait(seconds) is not None
    except subprocess.TimeoutExpired:
        return False


def students(store: Path) -> list[bytes]:
    return [path.read_bytes() for path in (store / "artifacts" / "sft").glob("*/model.safetensors")]
