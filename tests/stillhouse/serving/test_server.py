import json
import signal
import subprocess
import sys

import httpx
import psutil
import pytest

SERVE = [sys.executable, "-m", "stillhouse.serving"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"model": "embedded:nobody"}, "nobody"),
        ({"api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
        ({"host": "192.0.2.1"}, "192.0.2.1"),
    ],
)
def test_settings_that_cannot_be_served_give_one_clear_line_and_exit_code_1(wrong: dict[str, str], named: str) -> None:
    command = [*SERVE, json.dumps({"model": "embedded:student", **wrong})]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert named in result.stderr
    assert "Traceback" not in result.stderr


def test_it_listens_on_loopback_alone_by_default(server: str) -> None:
    port = httpx.URL(server).port
    listening = [socket.laddr for socket in psutil.net_connections("tcp") if socket.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}


@pytest.mark.slow
def test_sigterm_stops_it_quickly_also_in_the_middle_of_a_completion() -> None:
    options = {"model": "embedded:student", "device": "cpu", "num_threads": 1}
    with subprocess.Popen([*SERVE, json.dumps(options)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split('"')[3]
        body = {"model": "embedded:student", "prompt": [7] * 20, "max_tokens": 1000, "ignore_eos": True, "n": 40}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/completions", json=body, timeout=httpx.Timeout(5.0, read=0.2))
        process.send_signal(signal.SIGTERM)
        process.wait(120)
