"""The process that knows the tests: it has the answer run in another one, and compares what comes of it."""

import json
import os
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from stillhouse.sandbox.jail import drop_privileges
from stillhouse.sandbox.limits import MAX_MEMORY_BYTES, MAX_PROCESSES
from stillhouse.sandbox.root import import_only_what_is_shown
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
"""What is wrong with one run, False or None and why; None if nothing is."""


def judge(call: socket.socket) -> bytes:
    """What a jail's worker does: answers `verified` and `note` for the question that it reads.

    The question is a line of JSON: `code`, `max_cpu_s`, and `programs`: each has `stdin` and `stdout` of a script; or
    `calls` of a function (objects of `name`, `args` and `expected`); or `tests`, source text, and their `entry_point`.
    """
    starter = Starter()
    drop_privileges(MAX_PROCESSES)
    import_only_what_is_shown()
    with call, call.makefile("rb") as lines:
        question: JsonObject = json.loads(lines.readline())
    verified, note = _judge_all(starter, question)
    return json.dumps({"verified": verified, "note": note and _printable(note)}).encode()


def _judge_all(starter: Starter, question: JsonObject) -> tuple[bool | None, str | None]:
    programs = question["programs"]
    for number, program in enumerate(programs, start=1):
        run = _Run(starter, question["code"], question["max_cpu_s"])
        outcome = run.script(program) if "stdout" in program else run.module(program)
        if outcome is not None:
            place = f"test {number} of {len(programs)}: " if len(programs) > 1 else ""
            return outcome[0], place + outcome[1]
        if number < len(programs):
            run.end()
    return True, None


class _Run:
    """One run of the answer, in a process of its own."""

    def __init__(self, starter: Starter, code: str, max_cpu_s: int) -> None:
        self._starter = starter
        self._code = code
        self._max_cpu_s = max_cpu_s
        self._line: MessageChannel | None = None

    def script(self, program: JsonObject) -> Outcome:
        """What is wrong with what a script prints, or with how it ends."""
        with _memory_file() as stdin, _memory_file() as stdout:
            stdin.write(program["stdin"].encode(errors="replace"))
            stdin.seek(0)
            line = self._starter.start(stdin.fileno(), stdout.fileno())
            reason = ""
            try:
                line.send({"code": self._code, "script": True})
                reason = str(line.receive()[1])
            except (ChannelClosed, Malformed, LookupError, TypeError):
                pass
            code = self._starter.exit_code()
            if code != 0:
                return False, reason or self._how_it_ended(code)
            # The place in the file is shared with what wrote it.
            stdout.seek(0)
            seen = stdout.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
        expected = program["stdout"]
        return None if same_output(seen, expected) else (False, f"printed {seen[:100]!r}, expected {expected[:100]!r}")

    def module(self, program: JsonObject) -> Outcome:
        """What is wrong with what the answer's functions and classes give."""
        self._line = self._starter.start()
        suite = None
        try:
            if "calls" in program:
                reach = SolutionClient(self._line)
                reach.load(self._code)
                return _wrong_call(reach, program["calls"])
            suite = Suite(program["tests"], program["entry_point"])
            reach = SolutionClient(self._line, suite.names)
            outcome = suite.run(reach, self._code)
        except TestsStopped:
            outcome = None
        if reach.verdict is None:
            return outcome
        verified, note = reach.verdict
        return verified, note or self._how_it_ended(self._starter.exit_code())

    def end(self) -> None:
        """Lets the answer's process end, where it has not yet."""
        if self._line is not None:
            self._line.close()
            self._starter.exit_code()

    def _how_it_ended(self, code: int) -> str:
        memory = f"; it may use {MAX_MEMORY_BYTES >> 20} MiB of memory" if code < 0 else ""
        return f"the code {describe_exit(code, self._max_cpu_s)}{memory}"


def _wrong_call(reach: SolutionClient, calls: list[JsonObject]) -> Outcome:
    for call in calls:
        try:
            value = _as_json(function_of(reach, call["name"])(*call["args"]))
        except TestsStopped:
            raise
        # What the answer raises is its outcome, SystemExit among it.
        except BaseException as error:
            return False, getattr(error, "_reason", None) or str(error)
        if not same_value(value, call["expected"]):
            shown = ", ".join(map(repr, call["args"]))
            return False, f"{call['name']}({shown[:100]}) gave {value!r:.100}, expected {call['expected']!r:.100}"
    return None


def _as_json(value: Any) -> Any:
    """A value as JSON has it, for tests that are written in JSON."""
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
    # Apart from the folder, which the code may fill.
    return os.fdopen(os.memfd_create("stillhouse"), "w+b")


def _printable(note: str) -> str:
    """A note that fits a cell of a table: short, in one line, without control characters."""
    return "".join(char if char.isprintable() else " " for char in note)[:_MAX_NOTE_CHARS]
