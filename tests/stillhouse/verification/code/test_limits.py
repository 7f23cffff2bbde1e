import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.sandbox.supervisor import descendants
from stillhouse.verification.code.cases import programs_of
from stillhouse.verification.code.check import CodeRunner
from stillhouse.verification.result import VerificationResult

Find = Callable[..., VerificationResult]


def verify_code(find: Find, code: str, tests: str = "assert done", **metadata: object) -> VerificationResult:
    return find("python", f"```python\n{code}\ndone = True\n```", tests, **{"time_limit_s": 1, **metadata})


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("while True: pass", "the code used more than 1 s of processor time"),
        ("x = bytearray(3 << 30)", "solution.py, line 1: MemoryError"),
        ("x = []\nwhile True: x.append(bytes(10**6))", "solution.py, line 2: MemoryError"),
        ("import os\nwhile True:\n    if os.fork() == 0: import time; time.sleep(9)", "BlockingIOError"),
        ("f = open('big', 'wb')\nwhile True: f.write(bytes(10**6))", "OSError"),
        ("import ctypes\nctypes.string_at(0)", "the code was killed by SIGSEGV"),
    ],
)
def test_code_that_wants_too_much_is_wrong(find, code: str, note: str) -> None:
    result = verify_code(find, code)
    assert result.verified is False
    assert note in str(result.note)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["import time\ntime.sleep(600)", "import os\nwhile True: os.fork()"])
def test_code_that_waits_or_multiplies_is_ended(find, code: str) -> None:
    assert verify_code(find, code).verified is False


@pytest.mark.parametrize(
    ("family", "address", "note"),
    [("AF_INET", ("127.0.0.1", 0), "unreachable"), ("AF_UNIX", "\0stillhouse-test", "ConnectionRefusedError")],
)
def test_no_connection_arrives(find, family: str, address: Any, note: str) -> None:
    with socket.socket(getattr(socket, family)) as server:
        server.bind(address)
        server.listen()
        server.settimeout(0.2)
        bound = server.getsockname()
        bound = bound.decode() if isinstance(bound, bytes) else bound
        result = verify_code(find, f"import socket\nsocket.socket(socket.{family}).connect({bound!r})")
        assert result.verified is False
        assert note in str(result.note)
        with pytest.raises(TimeoutError):
            server.accept()


def test_files_are_written_to_a_folder_that_is_gone_afterwards(find, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    home = Path.home() / ".stillhouse-test"
    for target in (victim, home):
        result = verify_code(find, f"open({str(target)!r}, 'w').write('x')")
        assert result.verified is False
    assert victim.read_text() == "untouched"
    assert not home.exists()
    code = "from pathlib import Path\nPath('stillhouse-note').write_text('x')\nfolder = str(Path.cwd())"
    tests = "from pathlib import Path\nassert Path('stillhouse-note').read_text() == 'x'\nprint(folder)"
    assert verify_code(find, code, tests).verified is True
    assert verify_code(find, "import os\ndef files(): return os.listdir('.')", "assert files() == []").verified is True
    assert not Path("/tmp/stillhouse-note").exists()


def test_the_walls_cannot_be_taken_down_from_inside(find, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "libc.unshare(0x10000000 | 0x20000)\n"
        f"for folder in (b'/', b'/tmp', {os.fsencode(tmp_path)!r}):\n"
        "    libc.umount2(folder, 2)\n"
        "    libc.mount(b'', folder, b'', 4096 | 32, None)\n"
        f"open({str(victim)!r}, 'w')"
    )
    assert verify_code(find, code).verified is False
    assert victim.read_text() == "untouched"


def test_other_processes_and_secrets_are_out_of_sight(find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    tests = (
        "import os\nassert 'OPENAI_API_KEY' not in os.environ\nassert os.listdir('/proc') == []\n"
        f"try:\n    os.kill({os.getpid()}, 0)\nexcept ProcessLookupError:\n    pass\nelse:\n    assert False\n"
    )
    assert verify_code(find, "pass", f"{tests}assert done").verified is True


def test_nothing_is_left_running(find) -> None:
    sleeper = (
        "import subprocess, sys, os, time\n"
        "subprocess.Popen(['sleep', '617'])\n"
        "subprocess.Popen(['sleep', '617'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(617)\n"
    )
    assert verify_code(find, "pass").verified is True
    before = set(descendants(os.getpid()))
    assert verify_code(find, sleeper).verified is True
    assert wait_for(lambda: set(descendants(os.getpid())) <= before)
    assert verify_code(find, sleeper + "while True: pass").verified is False
    assert wait_for(lambda: set(descendants(os.getpid())) <= before)


def test_code_dies_with_the_process_that_asked() -> None:
    asking = (
        "from stillhouse.types import PromptMetadata\nfrom stillhouse.verification import verify\n"
        "code = '```python\\nimport time\\ntime.sleep(617)\\n```'\n"
        "print('asking', flush=True)\nverify(code, PromptMetadata('p', 'assert True', None, 'python', {}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", asking], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # The server, the supervisor, the anchor, the tests, the starter, and the code.
        assert wait_for(lambda: len(descendants(process.pid)) == 6)
        started = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_without_namespaces_nothing_is_run(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    code = f"```python\nopen({str(victim)!r}, 'w')\n```"
    asking = (
        "from stillhouse.types import PromptMetadata, StopReason\nfrom stillhouse.verification import examine\n"
        f"messages = [{{'role': 'assistant', 'content': {code!r}}}]\n"
        "print(examine(messages, StopReason.ANSWERED, PromptMetadata('p', 'assert True', None, 'python', {})).note)\n"
    )
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", sys.executable, "-c", asking]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("the code was not run, since it cannot be kept in a sandbox here: unshare(2)")
    assert not victim.exists()


@pytest.mark.usefixtures("jail")
def test_answers_are_judged_in_a_run_that_writes_for_its_owner_alone() -> None:
    question = {
        "code": "def double(x):\n    return 2 * x",
        "programs": programs_of("assert double(3) == 6", {}),
        "max_cpu_s": 5,
    }
    umask = os.umask(0o077)
    try:
        result = CodeRunner().run(question, 60.0)
    finally:
        os.umask(umask)
    assert result == VerificationResult(True, None)
