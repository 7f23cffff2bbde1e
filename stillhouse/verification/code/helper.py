"""The process that runs answers in jails and watches them."""

import gc
import json
import os
import select
import signal
import tempfile
import time
from typing import Any, BinaryIO, Final, NoReturn

from stillhouse.helpers import answer_questions
from stillhouse.tools.sandbox.limits import (
    MAX_MEMORY_BYTES,
    MAX_PROCESSES,
    adopt_orphans,
    descendants,
    die_with,
    kill_descendants,
    limit_this_process,
    num_threads,
)
from stillhouse.types import JsonObject
from stillhouse.verification.code.compare import same_output, same_value
from stillhouse.verification.code.jail import NoJail, enter_jail, give_up_power
from stillhouse.verification.code.program import run_program

_LOOK_EVERY_S: Final = 0.01
_MAX_OUTPUT_BYTES: Final = 16 << 20
_MAX_NOTE_CHARS: Final = 500
# The anchor and the first process of its namespaces.
_OWN_PROCESSES: Final = 2


def run_answer(question: JsonObject) -> JsonObject:
    """What the tests say of an answer: `verified`, and a `note`.

    Args:
        question: `code`, `programs` (see `run_program`, with `stdout` or `values` to expect), and the limits
            `max_cpu_s`, of processor time of each process, and `max_wall_s`, of the whole run.
    """
    num_before = num_threads()
    results, result = os.pipe()
    anchor = os.fork()
    if anchor == 0:
        _anchor(question, result)
    os.close(result)
    try:
        return _watch(results, num_before, question["max_wall_s"])
    finally:
        os.close(results)
        # First, since all of its namespaces end with it; one by one, a fork bomb's processes could not be caught.
        os.kill(anchor, signal.SIGKILL)
        kill_descendants()


def _watch(results: int, num_before: int, max_wall_s: float) -> JsonObject:
    deadline = time.monotonic() + max_wall_s
    got = bytearray()
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return _verdict(False, f"the code did not end within {max_wall_s:g} s")
        if select.select([results], [], [], min(left_s, _LOOK_EVERY_S))[0]:
            part = os.read(results, 1 << 16)
            got += part
            if not part:
                return json.loads(got) if got else _verdict(None, "the sandbox ended without a result")
        # The kernel's own limit does not bind a root who may not become another user.
        most = MAX_PROCESSES + _OWN_PROCESSES
        if num_threads() > num_before + most and len(descendants(os.getpid())) > most:
            return _verdict(False, f"the code started more than {MAX_PROCESSES} processes")


def _anchor(question: JsonObject, result: int) -> NoReturn:
    """Makes the namespaces and waits for their first process, which dies with this one."""
    try:
        watcher = os.getppid()
        _silence()
        _keep_only(result)
        limit_this_process(question["max_cpu_s"])
        enter_jail()
        # Entering clears it, so not before.
        die_with(watcher)
        first = os.fork()
        if first == 0:
            _inside(question, result)
        os.close(result)
        os.waitpid(first, 0)
    except NoJail as error:
        _tell(result, _verdict(None, f"the code was not run, since it cannot be kept from the network here: {error}"))
    finally:
        os._exit(0)


def _inside(question: JsonObject, result: int) -> NoReturn:
    try:
        give_up_power(MAX_PROCESSES)
        # Outside of this namespace, the parent has no number.
        die_with(0)
        folder = os.getcwd()
        # One thread each: libraries of linear algebra take address space for as many as there are processors.
        os.environ.update(HOME=folder, TMPDIR=folder, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        tempfile.tempdir = folder
        _tell(result, _run_all(question))
    finally:
        os._exit(0)


def _run_all(question: JsonObject) -> JsonObject:
    programs = question["programs"]
    for number, program in enumerate(programs, start=1):
        found = _run_one(question, program)
        if found is not None:
            place = f"test {number} of {len(programs)}: " if len(programs) > 1 else ""
            return _verdict(found["verified"], place + found["note"])
    return _verdict(True, None)


def _run_one(question: JsonObject, program: JsonObject) -> JsonObject | None:
    """What is wrong with one run; None if nothing is."""
    # Apart from the folder, which the code may fill.
    with _memory_file() as stdin, _memory_file() as stdout, _memory_file() as report:
        stdin.write(program.get("stdin", "").encode(errors="replace"))
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            for stream, number in ((stdin, 0), (stdout, 1)):
                os.dup2(stream.fileno(), number)
            _keep_only(report.fileno())
            run_program(question["code"], program, report.fileno())
        code = os.waitstatus_to_exitcode(_wait_for(child))
        try:
            found = json.loads(_read(report))
        except ValueError:
            return _verdict(False, _how_it_ended(code, question["max_cpu_s"]))
        if "error" in found:
            return _verdict(None if found.get("bad_tests") else False, found["error"])
        return _difference(program, _read(stdout), found["values"])


def _difference(program: JsonObject, stdout: bytes, values: list[Any]) -> JsonObject | None:
    if "stdout" in program:
        seen = stdout.decode(errors="replace")
        if not same_output(seen, program["stdout"]):
            return _verdict(False, f"printed {seen[:100]!r}, expected {program['stdout'][:100]!r}")
    for call, value in zip(program.get("calls", ()), values, strict=False):
        if not same_value(value, call["expected"]):
            shown = ", ".join(map(repr, call["args"]))
            return _verdict(
                False, f"{call['name']}({shown[:100]}) gave {value!r:.100}, expected {call['expected']!r:.100}"
            )
    return None


def _wait_for(child: int) -> int:
    """The child's status; the orphans of this namespace end up here as well."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("stillhouse"), "w+b")


def _read(file: BinaryIO) -> bytes:
    # The child moved the place they share.
    file.seek(0)
    return file.read(_MAX_OUTPUT_BYTES)


def _how_it_ended(code: int, max_cpu_s: int) -> str:
    if code == -signal.SIGXCPU:
        return f"the code used more than {max_cpu_s} s of processor time"
    if code < 0:
        return f"the code was killed by {signal.Signals(-code).name}; it may use {MAX_MEMORY_BYTES >> 20} MiB of memory"
    return f"the code ended its process with code {code}"


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _keep_only(kept: int) -> None:
    """Closes all files but the standard streams and one."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _tell(result: int, verdict: JsonObject) -> None:
    os.write(result, json.dumps(verdict).encode())


def _verdict(verified: bool | None, note: str | None) -> JsonObject:
    return {"verified": verified, "note": note if note is None else note[:_MAX_NOTE_CHARS]}


if __name__ == "__main__":
    adopt_orphans()
    gc.collect()
    gc.freeze()
    answer_questions(run_answer)
