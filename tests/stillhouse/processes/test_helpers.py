import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillhouse.processes.helpers import HelperFailed, Helpers, HelperTimeout

ECHO = """
import os, sys, time
from stillhouse.processes.helpers import answer_questions

def answer(question):
    print("this must not be taken for an answer")
    if "sleep_s" in question:
        time.sleep(question["sleep_s"])
    if "exit" in question:
        os._exit(question["exit"])
    return {"pid": os.getpid(), "environment": sorted(os.environ), "echo": question}

if __name__ == "__main__":
    answer_questions(answer)
"""


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helpers]:
    (tmp_path / "echo_helper.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = Helpers("echo_helper")
    yield found
    found.close()


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_one_helper_answers_question_after_question(helpers: Helpers) -> None:
    answers = [helpers.ask({"number": number, "text": "x" * 200_000}, 20) for number in range(3)]
    assert [answer["echo"]["number"] for answer in answers] == [0, 1, 2]
    assert len({answer["pid"] for answer in answers}) == 1
    assert {len(answer["echo"]["text"]) for answer in answers} == {200_000}


def test_a_helper_sees_no_secrets(helpers: Helpers) -> None:
    assert set(helpers.ask({}, 20)["environment"]) <= {"PATH", "LANG", "LC_CTYPE", "PYTHONHASHSEED"}


def test_a_question_without_end_costs_its_helper_only(helpers: Helpers) -> None:
    first = helpers.ask({}, 20)["pid"]
    with pytest.raises(HelperTimeout, match=r"no answer within 0.1 s"):
        helpers.ask({"sleep_s": 600}, 0.1)
    assert is_gone(first)
    assert helpers.ask({"number": 1}, 20)["echo"] == {"number": 1}


def test_a_helper_that_dies_is_replaced(helpers: Helpers) -> None:
    with pytest.raises(HelperFailed, match="a helper process ended with code 3"):
        helpers.ask({"exit": 3}, 20)
    pid = helpers.ask({}, 20)["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(HelperFailed):
        helpers.ask({}, 20)
    assert helpers.ask({"number": 1}, 20)["echo"] == {"number": 1}


def test_closing_ends_the_helpers(helpers: Helpers) -> None:
    pid = helpers.ask({}, 20)["pid"]
    helpers.close()
    assert is_gone(pid)


def test_a_helper_dies_with_the_process_that_asked(tmp_path: Path) -> None:
    (tmp_path / "echo_helper.py").write_text(ECHO)
    asking = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from stillhouse.processes.helpers import Helpers\n"
        "print(Helpers('echo_helper').ask({}, 20)['pid'], flush=True)\ninput()\n"
    )
    with subprocess.Popen([sys.executable, "-c", asking], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert is_gone(pid)
