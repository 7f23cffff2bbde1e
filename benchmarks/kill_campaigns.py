"""Campaigns of SIGKILL: what a run that was killed at random moments ends with, and what it paid twice.

    python -m benchmarks.kill_campaigns --flow generate --campaigns 15
    python -m benchmarks.kill_campaigns --flow distill --campaigns 5 --kills 4

A campaign starts `stillhouse generate` or `stillhouse distill` on a store of its own, kills the whole process group at
a random moment, does so several times, and then lets the same command end. The teacher is a simulated provider, which
knows what it billed. An uninterrupted run of the same config comes first. What is counted:

    lost, doubled, wrong    rows of the dataset against those of the uninterrupted run
    again                   requests billed more than once, against the most that were in flight at the kills: without
                            an answer, or with one that left the provider within the second before and may not have
                            been on the disk; never more than the client's concurrency
    left                    processes of the group's family that outlived a kill by 15 s
    weights                 distill alone: whether the students are to the byte those of the uninterrupted run

Half of the kills wait for a random number of answers, so that they fall into the rollouts; the others for a random
part of the time that the uninterrupted run took. A campaign is repeated by `--seed` with the number it printed.

Measured (two cores that others used too): 16 campaigns of generate (57 kills, 60 prompts of three requests each) and
4 of distill (12 kills, 40 prompts of three requests) lost, doubled and altered no row and left no process. Of generate
3,118 requests were billed in place of 2,880 (238 again, 273 in flight), of distill 504 in place of 480 (24 again, 24 in
flight). The students were to the byte those of the uninterrupted run.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psutil
import yaml

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

Flow = Literal["generate", "distill"]

_ROOT: Final = Path(__file__).resolve().parents[1]
_CONCURRENCY: Final = 8
_JUST_ANSWERED_S: Final = 1.0
_TIME_LIMIT_S: Final = 900.0
_TOOLS: Final = """
from stillhouse.tools import tool

@tool
def shout(text: str) -> str:
    "The text in capitals."
    return text.upper()
"""


@dataclass(slots=True)
class Outcome:
    """What one campaign ended with."""

    seed: int
    num_kills: int = 0
    in_flight: int = 0
    """Sum over the kills."""
    num_billed: int = 0
    num_again: int = 0
    num_lost: int = 0
    num_doubled: int = 0
    num_wrong: int = 0
    num_left: int = 0
    same_weights: bool | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, doubled, wrong or left, and nothing paid twice that was not in flight."""
        counted = self.num_lost + self.num_doubled + self.num_wrong + self.num_left
        return not counted and not self.problems and self.num_again <= self.in_flight and self.same_weights is not False


class Campaigns:
    """Campaigns of one flow, against one uninterrupted run.

    Args:
        flow: which.
        folder: for their stores.
        num_prompts: of the config.
    """

    def __init__(self, flow: Flow, folder: Path, num_prompts: int) -> None:
        self._flow = flow
        self._folder = folder
        self._prompts = _write_prompts(folder / "prompts.jsonl", flow, num_prompts)
        (folder / "shout.py").write_text(_TOOLS)
        with self._provider() as provider:
            started = time.monotonic()
            self._finish(provider, folder / "calm")
            self._calm_s = time.monotonic() - started
            self._num_requests = provider.num_billed
        self._rows = _rows(folder / "calm")
        if not self._rows:
            raise RuntimeError("the uninterrupted run made no rows")

    def run(self, seed: int, num_kills: int) -> Outcome:
        """One campaign."""
        chance, outcome = random.Random(seed), Outcome(seed)
        store = self._folder / f"killed-{seed}"
        with self._provider() as provider:
            for _ in range(num_kills):
                if not self._run_and_kill(provider, store, chance, outcome):
                    break
            try:
                self._finish(provider, store)
            except RuntimeError as error:
                outcome.problems.append(str(error))
                return outcome
            outcome.num_billed = provider.num_billed
            outcome.num_again = sum(count - 1 for count in provider.billed.values())
        self._compare(store, outcome)
        return outcome

    def _run_and_kill(self, provider: SimulatedProvider, store: Path, chance: random.Random, outcome: Outcome) -> bool:
        """False where the command had ended by itself before its moment came."""
        waits_for_answers = chance.random() < 0.5
        answers = provider.num_billed + chance.uniform(0.0, 1.0) * max(1, self._num_requests - provider.num_billed)
        seconds = chance.uniform(0.0, 1.0) * self._calm_s
        after_s = chance.uniform(0.0, 0.3)
        with self._running(provider, store) as process:
            started = time.monotonic()
            while process.poll() is None:
                elapsed = time.monotonic() - started
                # Where every answer is there already none comes any more.
                if waits_for_answers and provider.num_billed < self._num_requests:
                    if provider.num_billed >= answers:
                        break
                elif elapsed >= seconds:
                    break
                if elapsed > _TIME_LIMIT_S:
                    raise RuntimeError(f"{store}: no end in sight after {elapsed:.0f} s")
                time.sleep(0.005)
            if process.poll() is None:
                time.sleep(after_s)
            if process.poll() is not None:
                return False
            family = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGKILL)
            killed_at = time.time()
            process.wait()
            outcome.num_kills += 1
            underway = [
                entry
                for entry in provider.ledger
                if entry.arrived_at <= killed_at
                and (entry.answered_at is None or entry.answered_at > killed_at - _JUST_ANSWERED_S)
            ]
            # A request keeps its place until its answer is on the disk.
            outcome.in_flight += min(_CONCURRENCY, len(underway))
            _, alive = psutil.wait_procs(family, timeout=15)
            outcome.num_left += len(alive)
            return True

    def _compare(self, store: Path, outcome: Outcome) -> None:
        ours, theirs = _rows(store), self._rows
        outcome.num_lost = len(theirs.keys() - ours.keys())
        outcome.num_doubled = sum(len(rows) - len(theirs.get(key, rows[:1])) for key, rows in ours.items())
        outcome.num_wrong = len(ours.keys() - theirs.keys()) + sum(
            rows[0] != theirs[key][0] for key, rows in ours.items() if key in theirs
        )
        if self._flow == "distill":
            outcome.same_weights = _weights(store) == _weights(self._folder / "calm")

    def _finish(self, provider: SimulatedProvider, store: Path) -> None:
        with self._running(provider, store) as process:
            code = process.wait(_TIME_LIMIT_S)
        if code != 0:
            raise RuntimeError(f"{store}: exit code {code}: {_log(store).read_text()[-2000:]}")

    @contextmanager
    def _running(self, provider: SimulatedProvider, store: Path) -> Iterator[subprocess.Popen[bytes]]:
        config = self._folder / f"{store.name}.yaml"
        config.write_text(yaml.safe_dump(self._config(provider.url, store)))
        command = [str(Path(sys.executable).parent / "stillhouse"), self._flow, str(config)]
        if self._flow == "generate":
            command += ["--output", str(_output(store))]
        environment = {**os.environ, "CAMPAIGN_KEY": "of no worth", "OMP_NUM_THREADS": "1"}
        with _log(store).open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextmanager
    def _provider(self) -> Iterator[SimulatedProvider]:
        with SimulatedProvider(_answer(self._prompts)) as provider:
            yield provider

    def _config(self, url: str, store: Path) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if self._flow == "distill":
            body = yaml.safe_load((_ROOT / "configs" / "smoke.yaml").read_text())
            body["evaluation"] |= {"enabled": False}
            body["on_policy"] |= {"teacher": "embedded:teacher"}
        changes: dict[str, dict[str, Any]] = {
            "prompts": {"source": str(self._folder / "prompts.jsonl"), "held_out_fraction": 0.0, "max_prompts": None},
            "teacher": {"model": "simulated", "base_url": url},
            "rollouts": {"max_turns": 4},
            "dataset": {"validation_fraction": 0.0},
            "runtime": {
                "store": str(store),
                "api_key_env": "CAMPAIGN_KEY",
                "concurrency": _CONCURRENCY,
                "max_concurrency": _CONCURRENCY,
                "shard_size": 10,
                "num_threads": 1,
            },
        }
        if self._flow == "generate":
            changes["tools"] = {"file": str(self._folder / "shout.py")}
            changes["dataset"]["labels"] = {"render": False}
            changes["tracking"] = {"enabled": False}
        for section, values in changes.items():
            body[section] = {**body.get(section, {}), **values}
        return body


def _write_prompts(path: Path, flow: Flow, count: int) -> dict[str, str]:
    """The answers by prompt."""
    if flow == "distill":
        lines = (_ROOT / "stillhouse" / "embedded" / "prompts.jsonl").read_text().splitlines()[:count]
        rows = [json.loads(line) for line in lines]
    else:
        rows = [
            {"prompt": f"question {number}", "metadata": {"expected_answer": f"answer {number}"}}
            for number in range(count)
        ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {row["prompt"]: row["metadata"]["expected_answer"] for row in rows}


def _answer(answers: dict[str, str]) -> Any:
    """Two calls of a tool, one a turn, then the answer; every request takes 50 to 150 ms."""

    def script(request: ReceivedRequest) -> Reply:
        question = next(message["content"] for message in request.body["messages"] if message["role"] == "user")
        delay_s = 0.05 + int(request.digest[:2], 16) / 255 * 0.1
        if request.num_turns < 2:
            (tool,) = [tool["function"]["name"] for tool in request.body["tools"]]
            text = f"{question} turn {request.num_turns}"
            arguments = {"expression": f"{request.num_turns} + 1"} if tool == "calculator" else {"text": text}
            return Reply(completion(tool_calls=[(tool, json.dumps(arguments))]), delay_s=delay_s)
        return Reply(completion(answers[question]), delay_s=delay_s)

    return script


def _rows(store: Path) -> dict[str, list[Any]]:
    """Messages of every kept row, by prompt: the ids of rollouts name the provider's port."""
    from stillhouse.dataset.read import read_rows
    from stillhouse.store.artifacts import require_whole

    rows: dict[str, list[Any]] = {}
    for folder in (store / "artifacts" / "dataset").glob("*"):
        require_whole(folder)
        for split in ("train", "validation"):
            for row in read_rows(folder, split):
                question = next(message["content"] for message in row["messages"] if message["role"] == "user")
                rows.setdefault(question, []).append(row["messages"])
    if _output(store).exists():
        written = Counter(line for line in _output(store).read_text().splitlines())
        if sum(written.values()) != sum(map(len, rows.values())):
            raise RuntimeError(f"{_output(store)} has {sum(written.values())} rows, the dataset another number")
    return rows


def _weights(store: Path) -> dict[str, bytes]:
    return {
        stage: path.read_bytes()
        for stage in ("sft", "on_policy")
        for path in (store / "artifacts" / stage).glob("*/model.safetensors")
    }


def _output(store: Path) -> Path:
    return store.parent / f"{store.name}.out.jsonl"


def _log(store: Path) -> Path:
    return store.parent / f"{store.name}.log"


def line_of(outcome: Outcome) -> str:
    """One row of the table."""
    weights = {None: "", True: "same", False: "OTHER"}[outcome.same_weights]
    return (
        f"{outcome.seed:>6} {outcome.num_kills:>5} {outcome.num_lost:>5} {outcome.num_doubled:>8} "
        f"{outcome.num_wrong:>6} {outcome.num_billed:>7} {outcome.num_again:>6} {outcome.in_flight:>10} "
        f"{outcome.num_left:>5} {weights:>8}  {'ok' if outcome.is_right else 'FAILED ' + '; '.join(outcome.problems)}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs campaigns; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flow", choices=["generate", "distill"], default="generate")
    parser.add_argument("--campaigns", type=int, default=5)
    parser.add_argument("--kills", type=int, default=4, help="most kills of a campaign")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the first campaign; the others count up from it")
    parser.add_argument("--folder", type=Path, default=None, help="keeps the stores there")
    options = parser.parse_args(arguments)
    seed = random.randrange(1000) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        campaigns = Campaigns(options.flow, folder, options.prompts)
        print("  seed kills  lost  doubled  wrong  billed  again  in flight  left  weights", flush=True)
        outcomes = []
        for number in range(options.campaigns):
            outcomes.append(campaigns.run(seed + number, options.kills))
            print(line_of(outcomes[-1]), flush=True)
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
