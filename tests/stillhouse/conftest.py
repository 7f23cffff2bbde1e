"""Fixtures of the domain's tests: writers killed while they write, rollouts collected from a loopback endpoint."""

import asyncio
import contextlib
import json
import random
import selectors
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.inference import Controller, Endpoint, Journal, RolloutStats
from stillhouse.inference.rate_limit import Caps, RateControl
from stillhouse.inference.retry import Effects
from stillhouse.progress.state import RolloutProgress
from stillhouse.rollouts import EverySample, Plan, RolloutCollector
from stillhouse.store import prompt_id
from stillhouse.tools import Toolbox
from stillhouse.tools.calculator import calculator
from stillhouse.types import Message, Prompt, Trajectory
from tests.provider import ReceivedRequest, Reply, completion

KillWriters = Callable[..., Iterator[int]]

# What is imported once serves every writer: each is a fork, which takes milliseconds.
_FORKS: Final = textwrap.dedent("""
    import os, sys
    from itertools import count

    def die_at(change):
        left = iter(range(change))

        def look(event, arguments):
            is_change = event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir") or (
                event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            )
            if is_change and next(left, None) is None:
                os.kill(os.getpid(), 9)

        sys.addaudithook(look)

    for line in sys.stdin:
        number, change = map(int, line.split())
        writer = os.fork()
        if writer == 0:
            die_at(change)
            for next_number in count(number):
                write(next_number)
        assert os.waitpid(writer, 0)[1] == 9, "the writer ended by itself"
        print("dead", flush=True)
""")


@pytest.fixture(scope="session")
def kill_writers() -> KillWriters:
    """Yields after each of `num_kills` SIGKILLs.

    A process calls `write(number)` of `program` over and over, with numbers that count up, until it is killed before
    one of its first `num_changes` changes to the file system, drawn at random, and the next one starts. `args` are the
    program's arguments.
    """

    def kill(program: str, *args: object, num_kills: int, num_changes: int, seed: int) -> Iterator[int]:
        chance = random.Random(seed)
        command = [sys.executable, "-c", textwrap.dedent(program) + _FORKS, *map(str, args)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
            assert forks.stdin is not None
            assert forks.stdout is not None
            for number in range(num_kills):
                forks.stdin.write(f"{number} {chance.randrange(num_changes)}\n")
                forks.stdin.flush()
                assert forks.stdout.readline() == "dead\n"
                yield number

    return kill


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Where nothing is ready, the time that would be waited has passed at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


@pytest.fixture(scope="session")
def run_in_virtual_time() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine that waits for timers alone, whose loop's clock begins at 0 and jumps from one to the next."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        selector = _JumpingSelector()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now  # type: ignore[method-assign]
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(work)

    return run


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite3") as opened:
        yield opened


@pytest.fixture
def make_prompts() -> Callable[..., list[Prompt]]:
    def make(count: int, *, tools: list[str] | None = None, start: int = 0) -> list[Prompt]:
        prompts = []
        for index in range(start, start + count):
            messages: list[Message] = [{"role": "user", "content": f"question {index}"}]
            prompts.append(Prompt(prompt_id(messages, tools), messages, tools))
        return prompts

    return make


class Collected:
    """What a collection gave and reported, with the error it ended by."""

    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []
        self.stats: RolloutStats | None = None
        self.error: Exception | None = None
        self.updates: list[RolloutProgress] = []


async def _nap(_seconds: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture
def collect(journal: Journal, make_prompts: Callable[..., list[Prompt]]) -> Callable[..., Collected]:
    """Collects rollouts of prompts, or of so many, with the real engine; waits before a retry are cut to nothing."""

    def run(
        url: str,
        prompts: int | Iterable[Prompt],
        *,
        config: RolloutsConfig = RolloutsConfig(),
        runtime: RuntimeConfig = RuntimeConfig(max_attempts=3, concurrency=8),
        toolbox: Toolbox | None = None,
        controller: Controller | None = None,
        identity: str = "model@1",
        journal: Journal = journal,
        plan: Plan | None = None,
        **options: Any,
    ) -> Collected:
        collected = Collected()
        prompts = make_prompts(prompts) if isinstance(prompts, int) else prompts

        async def main() -> None:
            collection = RolloutCollector(
                plan or EverySample(prompts, config.num_samples),
                endpoint=Endpoint(url, "simulated", identity, "secret-key"),
                config=config,
                toolbox=toolbox or Toolbox([calculator]),
                journal=journal,
                runtime=runtime,
                progress=collected.updates.append,
                controller=controller or Controller(RateControl(runtime.concurrency, Caps(runtime.max_concurrency))),
                effects=Effects(sleep=_nap),
                **options,
            )
            collected.stats = collection.stats
            async with contextlib.aclosing(collection):
                async for trajectory in collection:
                    collected.trajectories.append(trajectory)

        try:
            asyncio.run(main())
        except Exception as error:
            collected.error = error
        return collected

    return run


@pytest.fixture
def hello() -> Callable[[ReceivedRequest], Reply]:
    """A script of one turn."""
    return lambda request: Reply(completion("hello"))


@pytest.fixture
def two_sums_then_answer() -> Callable[[ReceivedRequest], Reply]:
    """A script of three turns: two with a call of the calculator, then the answer."""

    def script(request: ReceivedRequest) -> Reply:
        if (turn := request.num_turns) < 2:
            return Reply(completion(tool_calls=[("calculator", json.dumps({"expression": f"{turn} + 1"}))]))
        return Reply(completion("The answer is 2."))

    return script


class Hub:
    """Stands for the Hugging Face Hub: remembers what it is told to upload."""

    def __init__(self) -> None:
        self.public = False
        self.made: list[Any] = []
        self.commits: list[Any] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, repository: str, **options: Any) -> str:
        self.made.append((repository, options))
        return f"https://hub/{repository}"

    def repo_info(self, repository: str, *, repo_type: str) -> SimpleNamespace:
        return SimpleNamespace(private=not self.public)

    def upload_folder(self, *, folder_path: Path, **options: Any) -> None:
        self.commits.append(options)
        paths = [path for path in Path(folder_path).rglob("*") if path.is_file()]
        self.files = {str(path.relative_to(folder_path)): path.read_bytes() for path in paths}


@pytest.fixture
def hub() -> Hub:
    return Hub()
