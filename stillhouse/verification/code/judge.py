"""The process that holds the tests: it has the answer run in another process, and compares the results.

`python -m stillhouse.verification.code.judge CONTROL_SOCKET` is the fork server of such processes.
"""

import json
import os
import signal
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, BinaryIO, Final, NoReturn

from stillhouse.sandbox.jail import drop_privileges, restrict_import_path, run_child
from stillhouse.sandbox.server import serve_calls
from stillhouse.sandbox.supervisor import MAX_MEMORY_BYTES, close_other_files, describe_exit
from stillhouse.sandbox.syscalls import CLONE_NEWPID, return_to_own_processes, unshare
from stillhouse.types import JsonObject
from stillhouse.verification.code.answer import run_answer
from stillhouse.verification.code.compare import same_output, same_value
from stillhouse.verification.code.proxy import SolutionProxy
from stillhouse.verification.code.solution import SolutionClient, TestsStopped
from stillhouse.verification.code.suite import function_of, run_tests
from stillhouse.verification.code.wire import ChannelClosed, Malformed, receive, send
from stillhouse.verification.result import VerificationResult

_MAX_OUTPUT_BYTES: Final = 16 << 20
_MAX_NOTE_CHARS: Final = 500
_STATUS: Final = struct.Struct("i")


class Starter:
    """Starts the processes of an answer, one at a time.

    Made before anything of the question is read, it keeps a process whose memory holds none of it, and forks that. The
    caller still has its privileges in the jail then, and drops them afterwards.
    """

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Becomes readable once the answer's process has ended."""
        unshare(CLONE_NEWPID)
        if os.fork() == 0:
            _start_on_request(theirs)
        theirs.close()
        return_to_own_processes()

    def start(self, *files: int) -> Connection:
        """Start `run_answer` in a new process, on these files as its input and output; return the channel to it."""
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self.control, [b"s"], [theirs.fileno(), *files])
        return ours

    def exit_code(self) -> int:
        """Wait for the process to end and return its exit code, or below 0 the signal that killed it."""
        status = self.control.recv(_STATUS.size)
        return int(_STATUS.unpack(status)[0]) if len(status) == _STATUS.size else -signal.SIGKILL


def _start_on_request(control: socket.socket) -> NoReturn:
    try:
        close_other_files(control.fileno())
        drop_privileges()
        # Process 1 ignores what it does not handle.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while True:
            _, files, _, _ = socket.recv_fds(control, 1, 3)
            if not files:
                break
            code = run_child(partial(_run, control, *files), int)
            for number in files:
                os.close(number)
            # What the code left running.
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            control.send(_STATUS.pack(code))
    finally:
        os._exit(0)


def _run(control: socket.socket, channel: int, *streams: int) -> int:
    control.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return run_answer(Connection(channel))


def judge(call: socket.socket) -> bytes:
    """Run in a jail's first process: answer the request with `verified` and `note` as JSON.

    The request is a line of JSON with `code`, `max_cpu_s`, and `programs`. A program has the `stdin` and `stdout` of a
    script; or `calls` of a function (`name`, `args`, `expected`); or `tests`, source text, and their `entry_point`.
    """
    starter = Starter()
    drop_privileges()
    restrict_import_path()
    with call, call.makefile("rb") as lines:
        request: JsonObject = json.loads(lines.readline())
    programs = request["programs"]
    for number, program in enumerate(programs, start=1):
        run = _run_script if "stdout" in program else _run_module
        verified, note, *_ = run(starter, request, program)
        if verified is not True:
            prefix = f"test {number} of {len(programs)}: " if len(programs) > 1 else ""
            # For a table cell: short, one line, no control characters.
            note = "".join(char if char.isprintable() else " " for char in f"{prefix}{note}")[:_MAX_NOTE_CHARS]
            return json.dumps({"verified": verified, "note": note}).encode()
    return json.dumps({"verified": True, "note": None}).encode()


def _run_script(starter: Starter, request: JsonObject, program: JsonObject) -> VerificationResult:
    with _memory_file() as stdin, _memory_file() as stdout:
        stdin.write(program["stdin"].encode(errors="replace"))
        stdin.seek(0)
        with starter.start(stdin.fileno(), stdout.fileno()) as channel:
            reason = ""
            try:
                send(channel, {"code": request["code"], "script": True})
                reason = str(receive(channel, starter.control)[1])
            except (ChannelClosed, Malformed, LookupError, TypeError):
                pass
            code = starter.exit_code()
        if code != 0:
            return VerificationResult(False, reason or _how_it_ended(code, request))
        # The file offset is shared with the process that wrote.
        stdout.seek(0)
        printed = stdout.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
    expected = program["stdout"]
    if same_output(printed, expected):
        return VerificationResult(True)
    return VerificationResult(False, f"printed {printed[:100]!r}, expected {expected[:100]!r}")


def _run_module(starter: Starter, request: JsonObject, program: JsonObject) -> VerificationResult:
    """Run calls or tests against the answer's functions and classes."""
    with starter.start() as channel:
        client = SolutionClient(channel, starter.control)
        result = VerificationResult(True)
        try:
            if "calls" in program:
                client.load(request["code"])
                result = _compare_calls(client, program["calls"])
            else:
                result = run_tests(client, request["code"], program["tests"], program["entry_point"])
        except TestsStopped:
            pass
        verified, note, *_ = client.verdict or result
    if verified is True or not note:
        code = starter.exit_code()
        note = None if verified is True else _how_it_ended(code, request)
    return VerificationResult(verified, note)


def _compare_calls(client: SolutionClient, calls: list[JsonObject]) -> VerificationResult:
    for call in calls:
        try:
            value = _as_json(function_of(client, call["name"])(*call["args"]))
        except TestsStopped:
            raise
        # What the answer raises is its outcome, SystemExit included.
        except BaseException as error:
            return VerificationResult(False, getattr(error, "_reason", None) or str(error))
        if not same_value(value, call["expected"]):
            shown = ", ".join(map(repr, call["args"]))
            return VerificationResult(
                False, f"{call['name']}({shown[:100]}) gave {value!r:.100}, expected {call['expected']!r:.100}"
            )
    return VerificationResult(True)


def _as_json(value: Any) -> Any:
    """Return a value as JSON, for expected values written in JSON."""
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


def _how_it_ended(code: int, request: JsonObject) -> str:
    memory = f"; it may use {MAX_MEMORY_BYTES >> 20} MiB of memory" if code < 0 else ""
    return f"the code {describe_exit(code, request['max_cpu_s'])}{memory}"


def _memory_file() -> BinaryIO:
    # Not in the scratch folder, which the code may fill.
    return os.fdopen(os.memfd_create("stillhouse"), "w+b")


if __name__ == "__main__":
    serve_calls(lambda: judge)
