"""`kill -9` in the middle of tool rollouts: none lost, none doubled, only what was in flight asked again."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import orjson
import pytest

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

NUM_PROMPTS, NUM_TURNS, CONCURRENCY = 40, 5, 8
PROGRAM = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    import orjson
    from stillhouse.config import RolloutsConfig, RuntimeConfig
    from stillhouse.inference import Endpoint, Journal
    from stillhouse.rollouts import EverySample, RolloutCollector
    from stillhouse.store import prompt_id
    from stillhouse.tools import Toolbox, tool
    from stillhouse.types import Prompt

    url, store, count, concurrency = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    client = sys.argv[5]

    @tool
    def note(text: str) -> str:
        "Writes down that it ran."
        with (store / "calls").open("a") as file:
            file.write(text + "\\n")
        return text.upper()

    def prompts():
        for index in range(count):
            messages = [{"role": "user", "content": f"question {index}"}]
            yield Prompt(prompt_id(messages, None), messages)

    async def main():
        with Journal(store / "journal.sqlite3") as journal:
            collection = RolloutCollector(
                EverySample(prompts(), 1), endpoint=Endpoint(url, "m", "m", client=client), config=RolloutsConfig(),
                toolbox=Toolbox([note]),
                journal=journal, runtime=RuntimeConfig(concurrency=concurrency, max_concurrency=concurrency))
            async for trajectory in collection:
                sys.stdout.buffer.write(orjson.dumps(trajectory) + b"\\n")
                sys.stdout.buffer.flush()

    asyncio.run(main())
""")


def answer(request: ReceivedRequest) -> Reply:
    turn = request.num_turns
    name = request.body["messages"][0]["content"]
    if turn + 1 < NUM_TURNS:
        call = ("note", json.dumps({"text": f"{name} turn {turn}"}))
        return Reply(completion(tool_calls=[call]), delay_s=0.02)
    return Reply(completion(f"done with {name}"), delay_s=0.02)


@pytest.mark.parametrize(("client", "share"), [("direct", 0.1), ("direct", 0.5), ("direct", 0.9), ("openai", 0.5)])
def test_only_requests_in_flight_are_asked_again(tmp_path: Path, client: str, share: float) -> None:
    total = NUM_PROMPTS * NUM_TURNS
    until_kill = int(share * total)

    def answer_few_more(request: ReceivedRequest) -> Reply:
        is_answered = request.index < until_kill + CONCURRENCY // 2
        return answer(request) if is_answered else Reply({}, fault="hang")

    with SimulatedProvider(answer_few_more) as provider:
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            provider.url,
            str(tmp_path),
            str(NUM_PROMPTS),
            str(CONCURRENCY),
            client,
        ]
        with (tmp_path / "first").open("wb") as out:
            child = subprocess.Popen(command, stdout=out)
            while provider.num_billed < until_kill:
                time.sleep(0.002)
            os.kill(child.pid, signal.SIGKILL)
            assert child.wait(120) == -signal.SIGKILL
        assert until_kill <= provider.num_billed < total
        provider.script = answer
        second = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240).stdout

    billed = provider.billed
    repeated = {digest for digest, count in billed.items() if count > 1}
    assert len(billed) == total
    assert max(billed.values()) <= 2
    assert len(repeated) <= CONCURRENCY

    rows = [orjson.loads(line) for line in second.splitlines()]
    assert len({row["rollout_key"] for row in rows}) == len(rows) == NUM_PROMPTS
    for row in rows:
        assert row["stop_reason"] == "answered"
        name = row["messages"][0]["content"]
        results = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        assert results == [f"{name} turn {turn}".upper() for turn in range(NUM_TURNS - 1)]
    # What the first run handed out before it was killed is what the second hands out; its last line may be cut.
    handed_out = (tmp_path / "first").read_bytes().split(b"\n")[:-1]
    assert set(handed_out) <= set(second.splitlines())
    assert handed_out or share < 0.5

    ran = (tmp_path / "calls").read_text().splitlines()
    assert len(set(ran)) == NUM_PROMPTS * (NUM_TURNS - 1)
    # A tool whose result was not yet durable runs again, no other.
    assert len(ran) - len(set(ran)) <= CONCURRENCY
