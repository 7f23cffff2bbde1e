import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.processes.worker_pool import WorkerFailed, WorkerPool, WorkerTimeout
from tests.waiting import are_gone

ECHO = """
import os, sys, time
from stillhouse.processes.worker_pool import serve_requests

def handle(request):
    print("this must not be taken for an answer")
    if "sleep_s" in request:
        time.sleep(request["sleep_s"])
    while request.get("spins"):
        pass
    if "exit" in request:
        os._exit(request["exit"])
    return {"pid": os.getpid(), "environment": sorted(os.environ), "echo": request}

if __name__ == "__main__":
    serve_requests(handle)
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    workers = WorkerPool("echo_worker")
    yield workers
    workers.close()


def test_one_worker_answers_request_after_request(pool: WorkerPool) -> None:
    answers = [pool.request({"number": number, "text": "x" * 200_000}, 20) for number in range(3)]
    assert [answer["echo"]["number"] for answer in answers] == [0, 1, 2]
    assert len({answer["pid"] for answer in answers}) == 1
    assert {len(answer["echo"]["text"]) for answer in answers} == {200_000}


def test_a_worker_started_ahead_answers_the_first_request(pool: WorkerPool) -> None:
    pool.start_one()
    pool.start_one()
    (ahead,) = pool._idle
    assert pool.request({}, 20)["pid"] == ahead._process.pid


def test_a_worker_that_cannot_start_says_so_with_the_first_request() -> None:
    pool = WorkerPool("no_such_module")
    pool.start_one()
    with pytest.raises(WorkerFailed, match="code 1"):
        pool.request({}, 20)


def test_a_worker_sees_no_secrets(pool: WorkerPool) -> None:
    assert set(pool.request({}, 20)["environment"]) <= {"PATH", "LANG", "LC_CTYPE", "PYTHONHASHSEED"}


@pytest.mark.parametrize("endless", [{"sleep_s": 600}, {"spins": True}])
def test_a_request_without_end_costs_its_worker_only(pool: WorkerPool, endless: dict[str, Any]) -> None:
    first = pool.request({}, 20)["pid"]
    with pytest.raises(WorkerTimeout, match=r"0\.1 s"):
        pool.request(endless, 0.1)
    assert are_gone(first)
    assert pool.request({"number": 1}, 20)["echo"] == {"number": 1}


def test_a_worker_that_a_busy_machine_lets_wait_is_waited_for(pool: WorkerPool) -> None:
    pool.request({}, 20)
    assert pool.request({"sleep_s": 1.0}, 0.5)["echo"] == {"sleep_s": 1.0}


def test_a_worker_that_dies_is_replaced(pool: WorkerPool) -> None:
    with pytest.raises(WorkerFailed, match="code 3"):
        pool.request({"exit": 3}, 20)
    pid = pool.request({}, 20)["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerFailed):
        pool.request({}, 20)
    assert pool.request({"number": 1}, 20)["echo"] == {"number": 1}


def test_closing_ends_the_workers(pool: WorkerPool) -> None:
    pid = pool.request({}, 20)["pid"]
    pool.close()
    assert are_gone(pid)


def test_a_worker_dies_with_the_process_that_asked(tmp_path: Path) -> None:
    (tmp_path / "echo_worker.py").write_text(ECHO)
    asking = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from stillhouse.processes.worker_pool import WorkerPool\n"
        "print(WorkerPool('echo_worker').request({}, 20)['pid'], flush=True)\ninput()\n"
    )
    with subprocess.Popen([sys.executable, "-c", asking], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert are_gone(pid)
