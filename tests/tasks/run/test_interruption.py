import signal
import subprocess
import sys
from contextvars import ContextVar

from tasks.run.interruption import run_until_done

_name = ContextVar("name", default="none")

CODE = """
import asyncio, signal, sys
from tasks.run.interruption import run_until_done

class Terminated(BaseException):
    pass

def handler(number, frame):
    raise Terminated

async def busy():
    try:
        print("ready", flush=True)
        while True:
            await asyncio.sleep(0)
    finally:
        print("cleaned up", flush=True)

signal.signal(signal.SIGTERM, handler)
try:
    run_until_done(busy())
except Terminated:
    print("terminated", flush=True)
    assert signal.getsignal(signal.SIGTERM) is handler
"""


def _said_after_sigterm(program: str) -> str:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        said = process.stdout.read()
        assert process.wait(120) == 0
    return said


def test_sigterm_cancels_a_busy_loop_and_reaches_the_handler_in_force() -> None:
    assert _said_after_sigterm(CODE) == "cleaned up\nterminated\n"


AT_ONCE = """
import asyncio, os, signal
from tasks.run.interruption import run_until_done

def handler(number, frame):
    raise KeyError

async def interrupted():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(3600)

signal.signal(signal.SIGTERM, handler)
for _ in range(50):
    try:
        run_until_done(interrupted())
    except KeyError:
        pass
print("ended", flush=True)
"""


def test_a_signal_that_comes_as_soon_as_the_work_has_begun_ends_it() -> None:
    with subprocess.Popen([sys.executable, "-c", AT_ONCE], stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=120)
    assert (said, process.returncode) == ("ended\n", 0)


def test_a_result_comes_back_and_the_handler_in_force_stays_so_meanwhile() -> None:
    """Prefect takes a cancel for one, and for no crash, only while its own handler is in force."""

    async def handler() -> object:
        return signal.getsignal(signal.SIGTERM)

    assert run_until_done(handler()) == signal.getsignal(signal.SIGTERM)


def test_what_is_awaited_sees_the_context_of_its_caller() -> None:
    async def read() -> str:
        return _name.get()

    token = _name.set("flow run")
    assert run_until_done(read()) == "flow run"
    _name.reset(token)


FLOW = """
import os, signal, time
from tasks.run.interruption import Terminated, raised_on_sigterm

def prefect(number, frame):
    signal.signal(signal.SIGTERM, found)
    raise ValueError

try:
    with raised_on_sigterm():
        found = signal.signal(signal.SIGTERM, prefect)
        try:
            print("ready", flush=True)
            time.sleep(60)
        except ValueError:
            print("marked crashed", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            # A second one must not tear apart what the first has begun to save.
            os.kill(os.getpid(), signal.SIGTERM)
            print("saved", flush=True)
except Terminated:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    print("said", flush=True)
"""


def test_sigterm_is_raised_once_after_prefect_has_had_its_turn() -> None:
    assert _said_after_sigterm(FLOW) == "marked crashed\nsaved\nsaid\n"
