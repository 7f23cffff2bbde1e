import subprocess
import sys
import time

CODE = """
import asyncio, signal, sys
from tasks.interruption import run_until_done

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


def test_sigterm_cancels_a_busy_loop_and_reaches_the_handler_in_force() -> None:
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.terminate()
        assert process.stdout.read() == "cleaned up\nterminated\n"
        assert process.wait(10) == 0


def test_a_result_comes_back_and_the_handler_stays() -> None:
    import signal

    from tasks.interruption import run_until_done

    async def answer() -> int:
        return 42

    before = signal.getsignal(signal.SIGTERM)
    assert run_until_done(answer()) == 42
    assert signal.getsignal(signal.SIGTERM) == before
