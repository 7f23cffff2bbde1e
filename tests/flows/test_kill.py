"""Flows ended from outside, by kill -9, SIGTERM and Ctrl-C, and continued by the same command."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stillhouse.store.runs import find_run
from tests.provider import ReceivedRequest, Reply, SimulatedProvider

ROOT = Path(__file__).resolve().parents[2]
STILLHOUSE = Path(sys.executable).parent / "stillhouse"

# Longer than the smoke config trains, so that there is a middle to be killed in.
LONGER = ["sft.num_epochs=8", "on_policy.num_steps=10", "on_policy.trainer.checkpoint_every_steps=2"]
JOURNAL_FILE = "journal.sqlite3"


def _command(store: Path, overrides: list[str]) -> list[str]:
    command = [str(STILLHOUSE), "distill", str(ROOT / "configs" / "smoke.yaml")]
    for override in [f"runtime.store={store}", *overrides]:
        command += ["--set", override]
    return command


@contextmanager
def _running(store: Path, overrides: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    log = store.parent / f"{store.name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(_command(store, overrides), cwd=store.parent, stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _end(store: Path, overrides: list[str], when: Callable[[Path], bool], number: signal.Signals) -> int:
    """Run until `when`, send the signal, and see to it that no process stays behind; the exit code."""
    with _running(store, overrides) as process:
        deadline = time.monotonic() + 240
        while not when(store):
            assert process.poll() is None, (store.parent / f"{store.name}.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "what was waited for did not happen"
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family, "a server or a training process was expected to run"
        os.kill(process.pid, number)
        code = process.wait(60)
        _, alive = psutil.wait_procs(family, timeout=15)
        assert not alive, [one.cmdline() for one in alive]
        return code


def _finish(store: Path, overrides: list[str]) -> None:
    done = subprocess.run(
        _command(store, overrides), cwd=store.parent, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _some_answers(store: Path) -> bool:
    with suppress(sqlite3.OperationalError), closing(_journal(store)) as journal:
        return journal.execute("select count(*) from completion").fetchone()[0] >= 8
    return False


def _journal(store: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{store / JOURNAL_FILE}?mode=ro", uri=True, timeout=5)


def _checkpoint_of(stage: str) -> Callable[[Path], bool]:
    return lambda store: any((store / "training").glob(f"{stage}-*/checkpoints/step-*"))


def _student(store: Path, stage: str) -> Path:
    """Return the finished one: a killed write leaves a folder without a manifest."""
    (manifest,) = (store / "artifacts" / stage).glob("*/manifest.json")
    return manifest.parent


def _run_statuses(store: Path) -> list[tuple[str, str]]:
    """Return (name, status) of every run in MLflow, oldest first."""
    with closing(sqlite3.connect(store / "mlflow.db")) as database:
        return database.execute("select name, status from runs order by start_time").fetchall()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kill_9_in_every_stage_and_the_same_command_end_with_the_same_students(tmp_path: Path) -> None:
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    for when in (_some_answers, _checkpoint_of("sft"), _checkpoint_of("on_policy")):
        assert _end(killed, LONGER, when, signal.SIGKILL) == -signal.SIGKILL
    _finish(killed, LONGER)

    # The same rollouts to the byte: what is sampled from a server depends on what it batches together.
    calm.mkdir()
    with closing(_journal(killed)) as journal, closing(sqlite3.connect(calm / JOURNAL_FILE)) as copy:
        journal.backup(copy)
    _finish(calm, LONGER)
    for stage in ("sft", "on_policy"):
        ours, theirs = _student(killed, stage), _student(calm, stage)
        assert json.loads((ours / "student.json").read_text())["facts"]["resumed_from_step"] is not None
        assert json.loads((theirs / "student.json").read_text())["facts"]["resumed_from_step"] is None
        weights = [(folder / "model.safetensors").read_bytes() for folder in (ours, theirs)]
        assert weights[0] == weights[1], stage

    statuses = _run_statuses(killed)
    parents = [status for name, status in statuses if name == "distill"]
    assert parents == ["KILLED", "KILLED", "KILLED", "FINISHED"]
    # A training that goes on does so in the run it began.
    assert [status for name, status in statuses if name in {"sft", "on_policy"}] == ["FINISHED", "FINISHED"]
    shutil.rmtree(calm)


@pytest.mark.parametrize(
    ("number", "codes"),
    [
        (signal.SIGKILL, {-9}),
        (signal.SIGTERM, {1, 143}),
        pytest.param(signal.SIGINT, {1, 130}, marks=pytest.mark.slow),
    ],
)
def test_the_same_command_pays_for_no_answer_again_that_had_come_in(
    number: signal.Signals,
    codes: set[int],
    tmp_path: Path,
    embedded_rows: list[dict[str, Any]],
    provider: SimulatedProvider,
    shell: Callable[..., tuple[int, str]],
) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in embedded_rows))
    settings = ("tracking.enabled=false", "runtime.shard_size=3", "runtime.max_concurrency=1", "runtime.hedge=false")
    command = ["generate", "prompts.jsonl", "-o", "out.jsonl", "-m", "simulated", "--base-url", provider.url]
    command += ["-c", "1", "--api-key-env", "STILLHOUSE_TEST_KEY", *(x for one in settings for x in ("--set", one))]
    known = provider.script

    def ends(request: ReceivedRequest) -> Reply:
        # Of twelve answers, when the first shard is through.
        if request.index == 6:
            process.send_signal(number)
        return known(request)

    provider.script = ends
    with subprocess.Popen(
        [str(STILLHOUSE), *command],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        log = process.communicate(timeout=120)[1]
    assert process.returncode in codes, log
    assert "Traceback" not in log
    assert list(find_run(tmp_path / "runs", "latest")[1].artifacts) == ["prompts"]

    provider.script = known
    code, output = shell(*command)
    assert (code, "out.jsonl: 8 rows" in output) == (0, True), output
    # What was under way when the process ended may be asked once more.
    assert len(provider.ledger) <= 13
    assert sum(provider.billed.values()) - len(provider.billed) <= 1
