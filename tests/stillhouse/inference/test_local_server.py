import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import httpx
import psutil
import pytest

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.inference import Endpoint, Journal
from stillhouse.inference.local_server import CAPACITY, served_model
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.tools import Toolbox
from stillhouse.types import Prompt
from tests.waiting import arguments

RUNTIME = RuntimeConfig(device="cpu", num_threads=1)


def servers() -> list[psutil.Process]:
    """Return server processes started by this process."""

    return [child for child in psutil.Process().children(recursive=True) if "stillhouse.serving" in arguments(child)]


@pytest.fixture(autouse=True)
def _leaves_no_server_behind() -> Iterator[None]:
    before = {child.pid for child in servers()}
    yield
    assert {child.pid for child in servers()} == before


def test_users_at_the_same_time_share_one_server_and_the_last_one_stops_it() -> None:
    before = len(servers())
    urls: list[str] = []
    inside, leave = threading.Barrier(4), threading.Barrier(4)

    def use() -> None:
        with served_model("embedded:student", RUNTIME) as served:
            urls.append(served.url)
            inside.wait(120)
            leave.wait(120)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    inside.wait(120)
    assert len(set(urls)) == 1
    assert len(servers()) == before + 1
    assert httpx.get(f"{urls[0]}/models").json()["data"][0]["id"] == "embedded:student"
    leave.wait(120)
    for thread in threads:
        thread.join(120)
    assert len(servers()) == before
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{urls[0]}/models")


@pytest.mark.slow
def test_asyncio_callers_share_it_too_and_a_dead_server_is_named_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def enter(stack: ExitStack) -> str:
        return (await asyncio.to_thread(stack.enter_context, served_model("embedded:student", RUNTIME))).url

    async def use() -> None:
        with ExitStack() as stack:
            first, second = await asyncio.gather(enter(stack), enter(stack))
            assert first == second
            [child] = [child for child in servers() if first.rsplit(":", 1)[1].removesuffix("/v1") in str(ports(child))]
            ended = os.pidfd_open(child.pid)
            child.kill()
            assert select.select([ended], [], [], 10)[0]
            os.close(ended)
            third = await enter(stack)
            assert httpx.get(f"{third}/models").status_code == 200

    asyncio.run(use())
    assert [record.getMessage() for record in caplog.records if record.name == "stillhouse.local_server"] == [
        "the server of embedded:student ended with code -9: (none)"
    ]


def test_a_server_of_this_run_s_own_refuses_nothing(
    journal: Journal, make_prompts: Callable[[int], list[Prompt]], tmp_path: Path
) -> None:
    async def collect(url: str) -> tuple[RolloutCollector, int]:
        collection = RolloutCollector(
            EverySample(make_prompts(3 * CAPACITY), 1),
            endpoint=Endpoint(url, "embedded:student", "student", capacity=CAPACITY),
            config=RolloutsConfig(max_tokens=32, extra_body={"ignore_eos": True}),
            toolbox=Toolbox([]),
            journal=journal,
            runtime=RuntimeConfig(store=str(tmp_path), concurrency=8),
        )
        async with aclosing(collection):
            return collection, len([None async for _ in collection])

    with served_model("embedded:student", RUNTIME) as served:
        collection, num_done = asyncio.run(collect(served.url))
        stats = httpx.get(f"{served.url}/stats").json()
    assert num_done == stats["requests_completed"] == 3 * CAPACITY
    assert (collection.stats.num_rate_limited, stats["requests_rejected"]) == (0, {})


def ports(process: psutil.Process) -> list[int]:
    return [connection.laddr.port for connection in process.net_connections("tcp") if connection.status == "LISTEN"]


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="tokenizer") as caught, served_model(str(tmp_path), RUNTIME):
        pass
    assert str(tmp_path) in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_server_that_takes_too_long_is_ended_and_an_unknown_name_starts_nothing() -> None:
    slow = served_model("embedded:student", RUNTIME, start_timeout_s=0.2)
    with pytest.raises(EndpointError, match=r"within 0\.2 s"), slow:
        pass
    with pytest.raises(ConfigError, match="nobody"), served_model("embedded:nobody", RUNTIME):
        pass


def test_an_interrupt_while_it_starts_leaves_no_server() -> None:
    def interrupt(signal_number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt), served_model("embedded:student", RUNTIME):
            pass
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_the_server_ends_when_its_parent_is_killed() -> None:
    code = (
        "from stillhouse.config import RuntimeConfig\n"
        "from stillhouse.inference.local_server import served_model\n"
        "with served_model('embedded:student', RuntimeConfig(device='cpu', num_threads=1)):\n"
        "    print('served', flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        children = psutil.Process(parent.pid).children(recursive=True)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(120)
    assert children
    assert psutil.wait_procs(children, 30)[1] == []


def test_it_imports_no_torch() -> None:
    code = (
        "import sys, stillhouse.inference.local_server\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
