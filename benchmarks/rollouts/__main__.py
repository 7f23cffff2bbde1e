"""The engine and its peers through the same scenarios: hidden limits, faults, kills, tools.

    python -m benchmarks.rollouts --scenarios S1 S3 --sides engine script

Claims
    limits    the engine uses nearly all of any hidden limit and is hardly ever refused.
    rows      no row is lost, doubled or given another prompt's answer, whatever fails and whenever it is killed.
    bills     killed and started again, it pays a second time for what was in flight, and for nothing else.
    cost      its client costs a fraction of the `openai` package's CPU, and its memory does not follow the prompts.

Measured
    Each client is a process of its own, peers in environments of their own with pinned versions, all given the same job
    of the same simulated provider in another process, sides in turn, rounds after each other. Time is the provider's:
    from the first request to the last billed answer, so neither imports nor a package's last page count; after a kill
    the time until the first request of the next run is left out as well. CPU is that of the client and its children
    without its imports. The optimum is an event simulation that knows the limits and is never refused (`optimum`).
    Every client may have as many requests in flight as the scenario says; its other settings are what its
    documentation tells users to set. A client that takes five times the optimum and 40 s is stopped.

Learnt
    One round on two cores, other work running at times. Share of the optimum, and refusals a row:

                    engine          script           best of the packages from PyPI
        S1          0.86            0.52             0.46 (curator)
        S2          0.98, 0.008     0.68, 1.05       0.38, 0.06 (inspect_ai)
        S3          0.99, 0         236 of 600 lost  0.90, 0.57 (inspect_ai)
        S10         1.00, 0.010     0.78, 3.5        0.87, 0.82 (inspect_ai)
        S7, billed  63 of 80        64 of 74         66 of 70 (curator); datadesigner 570, distilabel hangs
        again of those in flight

    The engine alone: S5 0.93, 0.016; S6 0.55; S8 0.22, where its CPU decides; S9 0.99, 0; A 0.96; B 0.99 and more, with
    a refusal in ten rows, as there are few and large ones; D 0.95, 0.045; F-steps 0.93, 0.012; G 0.94, 0.002; H 0.83,
    122 billed again of 147 in flight at two kills; I 0.55; J 0.98; K pays for the missing samples alone. No row was
    lost, doubled or swapped. Three things cost rows or minutes on the way there: copies of silent requests that waited
    for the slots of the silent ones, silent requests sent before any latency was known, and slots that were free before
    their answers were durable.

Written
    runs/bench/rollouts/table.md and scores.json, anew after every trial, so that a run cut short leaves what it has.
    What each trial left, logs included, stays under runs/bench/rollouts/trials until it is run again.
"""

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.frame.peers import HERE, PEERS, NotInstallable, python_of
from benchmarks.rollouts.optimum import optimum_s
from benchmarks.rollouts.scenarios import SCENARIOS, Scenario
from benchmarks.rollouts.table import as_json, as_markdown
from benchmarks.rollouts.trial import Score, run_trial

_SIDES = ("engine", "script", "batches", *PEERS)
_QUICK = 0.1


def compare(
    scenarios: dict[str, Scenario], sides: Sequence[str], *, num_rounds: int, out: Path, venvs: Path
) -> dict[str, dict[str, list[Score]]]:
    """Scores of every side in every scenario that makes sense for it; written anew after each of them."""
    scores: dict[str, dict[str, list[Score]]] = {}
    optima = {name: optimum_s(scenario) for name, scenario in scenarios.items()}
    pythons, skipped = _pythons(sides, venvs)
    for name, scenario in scenarios.items():
        of_side: dict[str, list[Score]] = defaultdict(list)
        scores[name] = of_side
        print(f"{name}: {scenario.title}; at best {optima[name]:.2f} s", flush=True)
        for round_index in range(num_rounds):
            for side, python in pythons.items():
                if scenario.only is not None and side not in scenario.only:
                    continue
                folder = out / "trials" / f"{name}-{side}-{round_index}"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                score = run_trial(scenario, optima[name], side, python, folder)
                of_side[side].append(score)
                print(f"  {line(side, score)}", flush=True)
                (out / "scores.json").write_text(json.dumps(as_json(scores, optima, skipped), indent=2) + "\n")
                (out / "table.md").write_text(as_markdown(scores, optima, skipped), encoding="utf-8")
    return scores


def line(side: str, score: Score) -> str:
    """A score as printed."""
    again = "" if score.num_rebilled is None else f", {score.num_rebilled} again ({score.in_flight_at_kills} in flight)"
    return (
        f"{side}: {score.share_of_optimum:.2f} of the optimum ({score.span_s:.1f} s), {score.refused_per_row:.3f} "
        f"answers 429 a row, billed {score.billed_over_useful:.3f} of what is useful{again}; lost {score.num_lost}, "
        f"doubled {score.num_doubled}, swapped {score.num_swapped}; CPU {score.cpu_s_per_1000:.2f} s per 1,000, "
        f"{score.peak_rss_mb:.0f} MB, {score.peak_in_flight} in flight at most; ended {score.ended} "
        f"({score.exit_code})"
    )


def _pythons(sides: Sequence[str], venvs: Path) -> tuple[dict[str, Path], dict[str, str]]:
    pythons, skipped = {}, {}
    for side in sides:
        try:
            pythons[side] = python_of(side, venvs)
        except NotInstallable as error:
            skipped[side] = str(error)
            print(f"left out: {error}", flush=True)
    return pythons, skipped


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--sides", nargs="+", choices=(*sorted(HERE), *PEERS), default=_SIDES, metavar="SIDE")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a tenth of the prompts: whether it works, not how well")
    parser.add_argument("--list", action="store_true", help="name the scenarios with their optimum, and end")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/rollouts"))
    parser.add_argument("--venvs", type=Path, default=Path("runs/bench/venvs"))
    chosen = parser.parse_args(arguments)
    scenarios = {name: SCENARIOS[name].scaled(_QUICK if chosen.quick else 1) for name in chosen.scenarios}
    if chosen.list:
        for name, scenario in scenarios.items():
            print(f"{name}: {scenario.title}; {scenario.num_rows} rows, at best {optimum_s(scenario):.2f} s")
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    compare(scenarios, chosen.sides, num_rounds=chosen.rounds, out=chosen.out, venvs=chosen.venvs.absolute())
    print(f"written: {chosen.out / 'table.md'}, {chosen.out / 'scores.json'}")


if __name__ == "__main__":
    main()
