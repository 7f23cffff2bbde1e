"""Seconds until a command works: `python -m benchmarks.start [--rounds N]`.

Claims
    first    `stillhouse generate` asks its first request before a bare Prefect flow on Prefect's temporary server does.
    done     five prompts are a dataset with a report, recorded in MLflow, in less than the bare flow's seconds.
    wrong    a mistake in the command or the config is answered without importing Prefect.

Measured
    Five prompts from a loopback endpoint that answers at once, each command in a process of its own, in turns. `bare
    flow` asks the same five in a Prefect task by httpx and writes a JSONL file; `bare client` does so without Prefect;
    `cached` is the same `stillhouse generate` once more; `server` runs it against a Prefect server that stands. Fresh
    ones have an empty store and an empty PREFECT_HOME, without the databases of MLflow and Prefect. First: from the
    start of the process to the first request at the endpoint. CPU is that of the process and its children.

Learnt
    Two quiet cores, three rounds: first request after 4.3 s, done after 5.2 s (bare flow 6.3 and 8.4, bare client 0.2
    and 0.3), the cached command 4.9; fresh 4.7 and 5.7 (12.0 and 14.1); help after 0.4 s, a mistyped key after 0.3 s.
    - Prefect's server takes 2.9 s of CPU before it answers: 2.0 of imports, 0.35 for its routes, 0.25 for its database
      and services, 0.15 for the first requests. Nothing else is on the path to the first request: flows, MLflow and
      matplotlib are imported meanwhile.
    - Python's garbage collector took a fifth of the imports.
    - The run's process had imported Prefect's whole server (2.5 s), because Prefect's own temporary server is a class
      of that module, and polled it.
    - Registering block types (0.3 s) and the thread of heartbeats, which holds the end up for half a second, are
      needless in a server that ends with its run.
    - With a server that stands, the first request waits for MLflow instead (1.5 s of imports, 0.4 s for its run).
    - A fresh database was 5 s of Prefect's migrations and 0.7 s of MLflow's. Now it begins as a copy of an empty one
      that the installation keeps. Prefect's tables made from its models are no way: indices of its migrations clash.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.frame.rounds import argument_parser, publish, ratio, spread
from tasks.server.environment import set_defaults
from tasks.server.temporary_server import start_temporary_server
from tests.provider import Reply, SimulatedProvider, completion

_NUM_PROMPTS: Final = 5
_CLIENT: Final = """
import json, sys
import httpx
def ask(prompt):
    body = {"model": "toy", "messages": [{"role": "user", "content": prompt}]}
    answer = httpx.post(sys.argv[1] + "/chat/completions", json=body).json()
    return answer["choices"][0]["message"]["content"]
def write():
    rows = [json.loads(line) for line in open("prompts.jsonl")]
    with open("rows.jsonl", "w") as file:
        for row in rows:
            file.write(json.dumps({**row, "answer": ask(row["prompt"])}) + "\\n")
"""
_FLOW: Final = """
from prefect import flow, task
@flow
def rows():
    task(write)()
rows()
"""
_SERVER_VARIABLES: Final = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")


@dataclass(frozen=True, slots=True)
class Start:
    """One command from its start to its end."""

    first_s: float | None
    """Until the first request; None where nothing was asked."""
    done_s: float
    cpu_s: float


def timed(
    command: Sequence[str], folder: Path, received: list[float], variables: Mapping[str, str], code: int = 0
) -> Start:
    """Runs a command that ends with `code`, with its store and PREFECT_HOME in `folder`.

    `received` holds the times of requests.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "STILLHOUSE_"))}
    env |= {
        "PREFECT_HOME": str(folder / "prefect"),
        "OPENAI_API_KEY": "none",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables,
    }
    received.clear()
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    ended, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode != code:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}: {result.stderr[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start(received[0] - started if received else None, ended - started, cpu_s)


def measure(num_rounds: int, server: Mapping[str, str]) -> dict[str, list[Start]]:
    """The starts of each side, one a round; the first round, which writes bytecode and databases, is left out."""
    starts: dict[str, list[Start]] = {}
    received: list[float] = []

    def answer(_: object) -> Reply:
        received.append(time.perf_counter())
        return Reply(completion("It is a plant with leaves."))

    with tempfile.TemporaryDirectory() as name, SimulatedProvider(answer) as provider:
        folder = Path(name)
        stillhouse = [sys.executable, "-m", "flows.cli"]
        generate = [*stillhouse, "generate", "prompts.jsonl", "-m", "toy", "--base-url", provider.url, "-o", "o.jsonl"]
        flow = [sys.executable, "-c", _CLIENT + _FLOW, provider.url]
        sides: list[tuple[str, list[str], str, Mapping[str, str], int]] = [
            ("stillhouse generate", generate, "home", {}, 0),
            ("cached", generate, "home", {}, 0),
            ("bare flow", flow, "home", {}, 0),
            ("bare client", [sys.executable, "-c", _CLIENT + "write()", provider.url], "home", {}, 0),
            ("stillhouse generate, fresh", generate, "fresh", {}, 0),
            ("bare flow, fresh", flow, "fresh", {}, 0),
            ("stillhouse generate, server", generate, "home", server, 0),
            ("--help", [*stillhouse, "--help"], "home", {}, 0),
            ("mistyped key", [*generate, "--set", "rollouts.temperatur=1"], "home", {}, 2),
        ]
        for round_index in range(num_rounds + 1):
            for side, command, home, variables, code in sides:
                place = folder / home
                if home == "fresh":
                    shutil.rmtree(place, ignore_errors=True)
                place.mkdir(exist_ok=True)
                if side != "cached":
                    prompts = [{"prompt": f"{side} {round_index}: what is plant {i}?"} for i in range(_NUM_PROMPTS)]
                    text = "".join(json.dumps(row) + "\n" for row in prompts)
                    (place / "prompts.jsonl").write_text(text, encoding="utf-8")
                start = timed(command, place, received, variables, code)
                if round_index:
                    starts.setdefault(side, []).append(start)
    return starts


def report(starts: Mapping[str, Sequence[Start]]) -> list[str]:
    """A line for each side, and the ratios to the bare flow of the same round."""
    lines = [f"{'':<28} {'first request':>14} {'done':>7} {'CPU':>7}   seconds, medians"]
    for side, of_side in starts.items():
        first = [start.first_s for start in of_side if start.first_s is not None]
        cells = [f"{spread(first).median:14.2f}" if first else " " * 14]
        cells += [f"{spread([getattr(start, key) for start in of_side]).median:7.2f}" for key in ("done_s", "cpu_s")]
        lines.append(f"{side:<28} {' '.join(cells)}")
    for fresh in ("", ", fresh"):
        ours, bare = starts[f"stillhouse generate{fresh}"], starts[f"bare flow{fresh}"]
        earlier = ratio([start.first_s or 0.0 for start in ours], [start.first_s or 0.0 for start in bare])
        done = ratio([start.done_s for start in ours], [start.done_s for start in bare])
        lines.append(f"ours over the bare flow{fresh}: first request {earlier}, done {done}")
    return lines


def main() -> None:
    """Runs the rounds and prints what each side took."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["PREFECT_HOME"] = home
        set_defaults()
        start_temporary_server()
        starts = measure(options.rounds, {name: os.environ[name] for name in _SERVER_VARIABLES})
    publish(report(starts), {side: [asdict(s) for s in of_side] for side, of_side in starts.items()}, options.json)


if __name__ == "__main__":
    main()
