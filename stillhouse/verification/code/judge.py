"""The process that holds the tests: it has the answer run in another process, and compares the results."""

import json
import os
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from stillhouse.sandbox.jail import drop_privileges
from stillhouse.sandbox.limits import MAX_MEMORY_BYTES, MAX_PROCESSES
from stillhouse.sandbox.root import restrict_import_path
from stillhouse.sandbox.supervisor import describe_exit
from stillhouse.types import JsonObject
from stillhouse.verification.code.channel import ChannelClosed, MessageChannel
from stillhouse.verification.code.compare import same_output, same_value
from stillhouse.verification.code.proxy import SolutionProxy
from stillhouse.verification.code.solution import SolutionClient, TestsStopped
from stillhouse.verification.code.starter import Starter
from stillhouse.verification.code.suite import Suite, function_of
from stillhouse.verification.code.wire import Malformed

_MAX_OUTPUT_BYTES: Final = 16 << 20
_MAX_NOTE_CHARS: Final = 500

Outcome = tuple[bool | None, str] | None
"""`verified` (False or None) and the reason of a run that did not pass; None for one that did."""


def judge(call: socket.socket) -> bytes:
    """Runs in a jail's first process: answers the request with `verified` and `note` as JSON.

    The request is a line of JSON with `code`, `max_cpu_s`, and `programs`. A program has the `stdin` and `stdout` of a
    script; or `calls` of a function (`name`, `args`, `expected`); or `tests`, source text, and their `entry_point`.
    """
    starter = Starter()
    drop_privileges(MAX_PROCESSES)
    restrict_import_path()
    with call, call.makefile("rb") as lines:
        request: JsonObject = json.loads(lines.readline())
    verified, note = _judge_all(starter, request)
    return json.dumps({"verified": verified, "note": note and _printable(note)}).encode()


def _judge_all(starter: Starter, request: JsonObject) -> tuple[bool | None, str | None]:
    programs = request["programs"]
    for number, program in enumerate(programs, start=1):
        run = _Run(starter, request["code"], request["max_cpu_s"])
        outcome = run.script(program) if "stdout" in program else run.module(program)
        if outcome is not None:
            prefix = f"test {number} of {len(programs)}: " if len(programs) > 1 else ""
            return outcome[0], prefix + outcome[1]
        if number < len(programs):
            run.end()
    return True, None


class _Run:
    """One run of the answer in a new process."""

    def __init__(self, starter: Starter, code: str, max_cpu_s: int) -> None:
        self._starter = starter
        self._code = code
        self._max_cpu_s = max_cpu_s
        self._channel: MessageChannel | None = None

    def script(self, program: JsonObject) -> Outcome:
        """Compares what a script prints and its exit code."""
        with _memory_file() as stdin, _memory_file() as stdout:
            stdin.write(program["stdin"].encode(errors="replace"))
            stdin.seek(0)
            channel = self._starter.start(stdin.fileno(), stdout.fileno())
            reason = ""
            try:
                channel.send({"code": self._code, "script": True})
                reason = str(channel.receive()[1])
            except (ChannelClosed, Malformed, LookupError, TypeError):
                pass
            code = self._starter.exit_code()
            if code != 0:
                return False, reason or self._how_it_ended(code)
            # The file offset is shared with the process that wrote.
            stdout.seek(0)
            printed = stdout.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
        expected = program["stdout"]
        return (
            None
            if same_output(printed, expected)
            else (False, f"printed {printed[:100]!r}, expected {expected[:100]!r}")
        )

    def module(self, program: JsonObject) -> Outcome:
        """Runs calls or tests against the answer's functions and classes."""
        self._channel = self._starter.start()
        suite = None
        try:
            if "calls" in program:
                client = SolutionClient(self._channel)
                client.load(self._code)
                return _wrong_call(client, program["calls"])
            suite = Suite(program["tests"], program["entry_point"])
            client = SolutionClient(self._channel, suite.names)
            outcome = suite.run(client, self._code)
        except TestsStopped:
            outcome = None
        if client.verdict is None:
            return outcome
        verified, note = client.verdict
        return verified, note or self._how_it_ended(self._starter.exit_code())

    def end(self) -> None:
        """Waits for the answer's process to end."""
        if self._channel is not None:
            self._channel.close()
            self._starter.exit_code()

    def _how_it_ended(self, code: int) -> str:
        memory = f"; it may use {MAX_MEMORY_BYTES >> 20} MiB of memory" if code < 0 else ""
        return f"the code {describe_exit(code, self._max_cpu_s)}{memory}"


def _wrong_call(client: SolutionClient, calls: list[JsonObject]) -> Outcome:
    for call in calls:
        try:
            value = _as_json(function_of(client, call["name"])(*call["args"]))
        except TestsStopped:
            raise
        # What the answer raises is its outcome, SystemExit included.
        except BaseException as error:
            return False, getattr(error, "_reason", None) or str(error)
        if not same_value(value, call["expected"]):
            shown = ", ".join(map(repr, call["args"]))
            return False, f"{call['name']}({shown[:100]}) gave {value!r:.100}, expected {call['expected']!r:.100}"
    return None


def _as_json(value: Any) -> Any:
    """A value as JSON, for expected values written in JSON."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else json.dumps(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [_as_json(item) for item in sorted(value, key=repr)]
    if hasattr(type(value), "tolist"):
        return value.tolist()
    if isinstance(value, SolutionProxy) or (hasattr(value, "__iter__") and not isinstance(value, str)):
        try:
            return [_as_json(item) for item in value]
        except TypeError:
            return repr(type(value))
    return value


def _memory_file() -> BinaryIO:
    # Not in the scratch folder, which the code may fill.
    return os.fdopen(os.memfd_create("stillhouse"), "w+b")


def _printable(note: str) -> str:
    """A note that fits a table cell: short, one line, no control characters."""
    return "".join(char if char.isprintable() else " " for char in note)[:_MAX_NOTE_CHARS]
