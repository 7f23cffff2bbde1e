"""The process of a file's rewards: `python -m stillhouse.tools.reward_worker FILE CONTROL_SOCKET`.

A call is a socket that comes over the control socket. It takes a line of JSON with `name` and `payload`, and gives an
empty line when the function is called, then a line of JSON with `value` or `error`. Who closes it cancels the call.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stillhouse.errors import ConfigError
from stillhouse.processes.loop_thread import run_loop
from stillhouse.tools.context import explain
from stillhouse.tools.rewards import Reward, checked_reward
from stillhouse.tools.running import awaited
from stillhouse.tools.user_file import load_module
from stillhouse.types import JsonObject

_MAX_REQUEST_BYTES: Final = 1 << 30


def main() -> None:
    """Serve calls until the control socket is closed.

    The first line on standard output is JSON: null once calls are served, or why the file does not load.
    """
    # What the file and its functions print must not reach the caller as an answer, nor fill its pipe.
    with os.fdopen(os.dup(1), "w") as ready:
        os.dup2(2, 1)
        try:
            module = load_module(Path(sys.argv[1]), "the process of its rewards")
        except ConfigError as error:
            print(json.dumps(str(error)), file=ready)
            return
        print("null", file=ready)
    rewards = {value.name: value for value in vars(module).values() if isinstance(value, Reward)}
    with socket.socket(fileno=int(sys.argv[-1])) as control:
        run_loop(_serve(control, rewards))


async def _serve(control: socket.socket, rewards: Mapping[str, Reward]) -> None:
    is_closed = asyncio.Event()
    calls: set[asyncio.Task[None]] = set()

    def accept() -> None:
        _, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not handles:
            is_closed.set()
            return
        call = asyncio.create_task(_answer(socket.socket(fileno=handles[0]), rewards))
        calls.add(call)
        call.add_done_callback(calls.discard)

    asyncio.get_running_loop().add_reader(control, accept)
    await is_closed.wait()


async def _answer(call: socket.socket, rewards: Mapping[str, Reward]) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=call, limit=_MAX_REQUEST_BYTES)
    try:
        line = await reader.readline()
        if not line:
            return
        request = json.loads(line)
        running = asyncio.create_task(_run(rewards[request["name"]], request["payload"], writer))
        caller_left = asyncio.create_task(reader.read())
        await asyncio.wait({running, caller_left}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        caller_left.cancel()
    finally:
        writer.close()


async def _run(reward: Reward, payload: JsonObject, writer: asyncio.StreamWriter) -> None:
    # Both lines are sent at once, so that the caller's clock runs with the function even if others block the loop.
    writer.write(b"\n")
    try:
        answer: JsonObject = {"value": checked_reward(await awaited(reward.apply(payload)))}
    # SystemExit and KeyboardInterrupt would end the loop that all calls share.
    except BaseException as error:
        answer = {"error": explain(error)}
    writer.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
