import signal
import subprocess
import sys

import httpx
import psutil
import pytest
from openai import APIError, OpenAI

SERVE = [sys.executable, "-m", "stillhouse.serving"]


@pytest.mark.parametrize(
    "args",
    [
        ("embedded:nobody",),
        ("embedded:student", "--api-key-env", "NO_SUCH_VARIABLE"),
        ("embedded:student", "--host", "192.0.2.1"),
    ],
)
def test_settings_that_cannot_be_served_give_one_clear_line_and_exit_code_1(args: tuple[str, ...]) -> None:
    result = subprocess.run([*SERVE, *args], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert args[-1].removeprefix("embedded:") in result.stderr
    assert "Traceback" not in result.stderr


def test_it_listens_on_loopback_alone_by_default(server: str) -> None:
    port = httpx.URL(server).port
    listening = [socket.laddr for socket in psutil.net_connections("tcp") if socket.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}


@pytest.mark.slow
def test_sigterm_stops_it_quickly_also_in_the_middle_of_a_completion() -> None:
    args = [*SERVE, "embedded:student", "--device", "cpu", "--num-threads", "1"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split('"')[3]
        body = {"model": "embedded:student", "prompt": [7] * 20, "max_tokens": 1000, "ignore_eos": True, "n": 40}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/completions", json=body, timeout=httpx.Timeout(5.0, read=0.2))
        process.send_signal(signal.SIGTERM)
        process.wait(120)


@pytest.mark.slow
def test_clients_that_read_a_stream_are_told_that_it_stops() -> None:
    args = [sys.executable, "-m", "stillhouse.serving", "embedded:student", "--device", "cpu", "--num-threads", "1"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split('"')[3]
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="embedded:student",
                messages=[{"role": "user", "content": "Count."}],
                max_tokens=1000,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            next(stream)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(APIError, match="shutting down"):
                list(stream)
