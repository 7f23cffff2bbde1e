"""The field's claims about on-policy distillation, each tried with several seeds on models trained from nothing.

Every training, once it has ended, is kept under the digest of all that it depends on, and so is each seed's result of
an experiment: a run that was killed goes on where it was, and one with other settings repeats what they touch alone.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.frame.rounds import argument_parser, publish
from benchmarks.science.experiments import EXPERIMENTS
from benchmarks.science.findings import SeedResult, Verdict
from benchmarks.science.lab import Lab
from benchmarks.science.page import range_of, write_page
from benchmarks.science.units import Unit, run_all


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--experiments", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench/science"), help="keeps everything")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="trainings at once (default: the cores)")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it runs")
    chosen = parser.parse_args(arguments)
    lab = Lab(chosen.folder / "quick" if chosen.quick else chosen.folder, chosen.quick)
    units = [Unit(name, seed, lab) for name in chosen.experiments for seed in chosen.seeds]
    for unit, seconds in run_all(units, chosen.processes):
        print(f"{unit.experiment} with seed {unit.seed}: {seconds:.0f} s", flush=True)
    results_by_experiment = {
        name: [SeedResult.read(unit.path) for unit in units if unit.experiment == name] for name in chosen.experiments
    }
    if chosen.page is not None:
        write_page(chosen.page, results_by_experiment, quick=chosen.quick)
    verdicts = {name: EXPERIMENTS[name].verdicts(results) for name, results in results_by_experiment.items()}
    publish(list(_lines(verdicts)), _figures(results_by_experiment, verdicts), chosen.json)


def _lines(verdicts: dict[str, list[Verdict]]) -> Iterator[str]:
    for name, reached in verdicts.items():
        yield f"{name}: {EXPERIMENTS[name].title}"
        for verdict in reached:
            yield f"  {verdict.word:<26} {range_of(verdict.measured):<24} {verdict.claim.text}"


def _figures(results_by_name: dict[str, list[SeedResult]], verdicts: dict[str, list[Verdict]]) -> dict[str, Any]:
    return {
        name: {
            "title": EXPERIMENTS[name].title,
            "verdicts": [{**asdict(verdict), "word": verdict.word} for verdict in verdicts[name]],
            "seeds": [json.loads(json.dumps(asdict(result))) for result in results],
        }
        for name, results in results_by_name.items()
    }


if __name__ == "__main__":
    main()
