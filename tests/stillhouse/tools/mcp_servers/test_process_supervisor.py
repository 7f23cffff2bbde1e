import os
import signal
import subprocess
import sys

from stillhouse.tools.mcp_servers import process_supervisor
from tests.waiting import are_gone, is_alive

SUPERVISOR = [sys.executable, "-I", "-S", process_supervisor.__file__]


def start(names: str, code: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [*SUPERVISOR, names, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def test_the_server_sees_only_the_variables_it_is_given() -> None:
    code = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    environment = {"PATH": os.environ["PATH"], "SHOP": "1", "SECRET": "2", "USER": "me"}
    with start("PATH,HOME,SHOP", code, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.read().strip() == "['PATH', 'SHOP']"


def test_what_a_server_leaves_behind_ends_with_it() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, flush=True)"
    with start("PATH", code) as process:
        assert process.stdout is not None
        left_behind = int(process.stdout.readline())
    assert are_gone(left_behind)


def test_a_server_that_ignores_everything_ends_when_the_run_is_killed() -> None:
    server = (
        "import os, time, signal; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    )
    run = (
        "import subprocess, time; "
        f"subprocess.Popen({[*SUPERVISOR, 'PATH', sys.executable, '-c', server]!r}, start_new_session=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        os.kill(process.pid, signal.SIGKILL)
        assert are_gone(pid)


def test_a_command_that_is_not_there_is_named() -> None:
    done = subprocess.run(
        [*SUPERVISOR, "PATH", "no-such-program"], capture_output=True, text=True, start_new_session=True, check=False
    )
    assert done.returncode != 0
    assert done.stderr.strip() == "no-such-program: No such file or directory"
