import os
import resource
import signal
import subprocess
import sys
import time

from stillhouse.sandbox.supervisor import MAX_FILE_BYTES, descendants

LIMITED = "from stillhouse.sandbox.supervisor import limit_this_process\nlimit_this_process(1)\n"


def test_processor_time_is_limited_by_a_signal_of_its_own() -> None:
    endless = subprocess.run([sys.executable, "-c", LIMITED + "while True: pass"], timeout=240, check=False)
    assert endless.returncode == -signal.SIGXCPU


def test_limits_pass_on_to_what_a_limited_process_starts() -> None:
    kinds = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_CPU)
    ask = f"import resource; print(*(resource.getrlimit(kind)[0] for kind in {kinds}))"
    program = f"import subprocess, sys\n{LIMITED}subprocess.run([sys.executable, '-c', {ask!r}], check=True)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(MAX_FILE_BYTES), "0", "1"]


def test_descendants_are_found_at_any_depth() -> None:
    grandparent = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", grandparent], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while len(descendants(process.pid)) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process.pid in descendants(os.getpid())
        assert set(descendants(process.pid)) < set(descendants(os.getpid()))
        process.communicate(b"\n")
    assert descendants(process.pid) == []
