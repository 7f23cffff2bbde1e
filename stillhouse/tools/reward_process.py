"""Rewards that need a main thread: the async ones of a file, and plain ones that set signals.

Alarms, by which math-verify and others limit their time, work on the main thread of a process only, and the main thread
here collects, labels or trains. So a process of its own loads the file and runs its event loop on its main thread. It
sees what this one sees, and ends with it.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Final

from stillhouse.sandbox.client import JailFailed, SandboxServer, ServerUnavailable
from stillhouse.tools.context import ToolError
from stillhouse.tools.rewards import checked_reward
from stillhouse.tools.running import ConcurrencyLimit, TimeLimitReached
from stillhouse.types import JsonObject

_MAX_CONCURRENT: Final = 32
_MAX_GIVE_WAY_S: Final = 15.0
"""Seconds after a call's time limit, or that limit again if it is shorter, until a process that does not let the call
end is killed."""
_MAX_STARTS: Final = 5
_MAX_ANSWER_BYTES: Final = 1 << 30
_OUTSIDE_MAIN_THREAD: Final = "signal only works in main thread"
"""CPython's refusal of a signal."""


class RewardProcess:
    """Runs the rewards of a Python file on the main thread of a process, which starts with the first call.

    A call whose process ends before its turn, since another one crashed or would not stop, is made again in a new one.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._server = SandboxServer("stillhouse.tools.reward_worker", [str(file)], os.environ)
        self._slots = ConcurrencyLimit(_MAX_CONCURRENT)

    async def call(self, name: str, payload: JsonObject, timeout_s: float) -> float:
        """Return the value of a reward; `timeout_s` counts from the moment the function is called.

        `payload` is as `Reward.apply` takes it. Raise TimeLimitReached if it took longer, ToolError if it raised,
        returned no number from 0 to 1, or its process ended.
        """
        request = json.dumps({"name": name, "payload": payload}).encode() + b"\n"
        async with self._slots.slot():
            for _ in range(_MAX_STARTS):
                try:
                    return await self._exchange(request, timeout_s)
                except _NotStarted:
                    continue
                except ServerUnavailable as error:
                    raise ToolError(f"{self._file}: cannot be loaded by the process of its rewards: {error}") from error
        raise ToolError(f"the process that runs the async rewards of {self._file} ended before it could be called")

    async def close(self) -> None:
        """End the process; a later call starts another."""
        await asyncio.to_thread(self._server.close)

    async def _exchange(self, request: bytes, timeout_s: float) -> float:
        try:
            call = await asyncio.to_thread(self._server.open_call)
        except JailFailed as error:
            raise _NotStarted from error
        reader, writer = await asyncio.open_unix_connection(sock=call, limit=_MAX_ANSWER_BYTES)
        process, has_started = self._server.process, False
        try:
            # A call waits for the main thread while others compute.
            async with asyncio.timeout(_MAX_CONCURRENT * timeout_s):
                writer.write(request)
                await writer.drain()
                has_started = bool(await reader.readline())
            if not has_started:
                raise _NotStarted
            async with asyncio.timeout(timeout_s):
                answer = await reader.readline()
        except TimeoutError as error:
            if not await _ends(reader, writer, min(timeout_s, _MAX_GIVE_WAY_S)) and self._server.process is process:
                # Nothing else runs there then.
                await self.close()
            raise TimeLimitReached from error
        except OSError as error:
            if not has_started:
                raise _NotStarted from error
            answer = b""
        finally:
            writer.close()
        if not answer:
            raise ToolError("its process ended: it crashed, or was killed since a reward held up the others")
        decoded = json.loads(answer)
        if "error" in decoded:
            raise ToolError(decoded["error"])
        return checked_reward(decoded["value"])


async def _ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, give_way_s: float) -> bool:
    """Cancel a call, and return whether its process takes notice."""
    try:
        async with asyncio.timeout(give_way_s):
            writer.write_eof()
            await reader.read()
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


class _NotStarted(Exception):
    """The process ended before it called the function."""


def needs_main_thread(error: BaseException | None) -> bool:
    """Return whether a function failed to set a signal outside a main thread; libraries chain their own error."""
    while error is not None:
        if isinstance(error, ValueError) and str(error).startswith(_OUTSIDE_MAIN_THREAD):
            return True
        error = error.__cause__ or error.__context__
    return False
