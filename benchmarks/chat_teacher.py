"""Accuracy against the money of a teacher that only chats: SFT, self-training, and a teacher that scores.

    python -m benchmarks.chat_teacher [--seeds 11 12] [--folder runs/chat_teacher]

Claims
    money     after SFT on a few of the teacher's rollouts, self-training lifts the student's accuracy on held-out
              prompts by at least five points over SFT on three times as many rollouts.
    scored    it ends where exact divergences of a teacher that scores do.

Measured
    The demo's word problems with the calculator. The embedded teacher is a server on loopback that is asked for chat
    completions alone, at a stated price; what it costs is what the rollouts' artifacts say. A seed draws the held-out
    prompts (`prompts.split_seed`, 40 % of 2,000, so that one accuracy is known to +-2.5 points), the rollouts and the
    training. SFT has 60 epochs where it stands alone, with which 113 rollouts do best (3 to 150 were tried). Every arm
    is one `stillhouse distill`; the arms of a seed share a store.

        sft N             SFT on N rollouts of the teacher
        self-trained N    SFT on N rollouts, then rounds on the student's own right trajectories
        scored N          SFT on N rollouts, then on-policy: the teacher's whole distribution, 60 steps of 32

Learnt
    docs/recipes/chat_teacher.md has the figures. All arms of a seed take some twelve minutes on two cores.
"""

import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.frame.distill import run_distill
from benchmarks.frame.rounds import Spread, argument_parser, publish, spread
from stillhouse.config import load_config
from stillhouse.config.runtime import RuntimeConfig
from stillhouse.inference.local_server import served_model
from stillhouse.report.environment import REPORT_CSS, style_sheet
from stillhouse.report.svg import INK, drawing, panels, stage_ink, to_svg
from stillhouse.store.artifacts import artifact_in
from stillhouse.store.atomic import write_atomic
from stillhouse.types import JsonObject

_PRICE: Final = "teacher.usd_per_million_tokens={prompt: 0.75, completion: 4.5}"
_KEY: Final = "STILLHOUSE_BENCH_KEY"
_PAID: Final = ("completion_tokens", "prompt_tokens", "cost_usd")
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Accuracy against the teacher's money</title><style>{style}</style>
<main><h1>Accuracy against the teacher's money</h1>
<div style="max-width: 40rem">{svg}</div><pre>{table}</pre></main></html>
"""
ARMS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "sft 40": (40, ("sft.num_epochs=60",)),
    "sft 113": (113, ("sft.num_epochs=60",)),
    "sft 300": (300, ("sft.num_epochs=30",)),
    "self-trained 40": (40, ("sft.num_epochs=20", "self_training.enabled=true")),
    "self-trained 113": (113, ("sft.num_epochs=20", "self_training.enabled=true")),
    "scored 113": (113, ("sft.num_epochs=20", "on_policy.enabled=true", "on_policy.teacher=embedded:teacher")),
}
"""By name, the teacher's own rollouts that SFT learns, and the settings."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one arm."""

    arm: str
    seed: int
    accuracy: float
    """Of the last student, on held-out prompts."""
    completion_tokens: int
    """Of the teacher's rollouts."""
    prompt_tokens: int
    usd: float


def run_arm(arm: str, seed: int, url: str, folder: Path) -> Result:
    """Return what an arm ends with, run in this process; raise StillhouseError if the run fails."""
    num_rollouts, settings = ARMS[arm]
    os.environ[_KEY] = "none"
    store = folder / f"seed-{seed}"
    config = load_config(
        Path("configs/demo.yaml"),
        [
            *(f"runtime.store={store}", "tracking.enabled=false", "on_policy.enabled=false"),
            *("teacher.model=embedded:teacher", f"teacher.base_url={url}", _PRICE, f"runtime.api_key_env={_KEY}"),
            *("prompts.held_out_fraction=0.4", f"prompts.split_seed={seed}", f"rollouts.max_prompts={num_rollouts}"),
            *(f"rollouts.seed={seed}", f"sft.trainer.seed={seed}", f"on_policy.trainer.seed={seed}"),
            *settings,
        ],
    )
    published = run_distill(config, store)
    artifacts = json.loads((Path(published.report).parent / "run.json").read_text())["artifacts"]
    facts = [_facts_of(Path(uri)) for uri in artifacts["rollouts"]]
    completion, prompt, usd = (sum(one[name] for one in facts) for name in _PAID)
    last = next(name for name in ("on_policy", "self_training", "sft") if name in published.evaluations)
    return Result(arm, seed, published.evaluations[last]["accuracy"], completion, prompt, usd)


def _facts_of(folder: Path) -> JsonObject:
    artifact = artifact_in(folder)
    if artifact is None:
        raise RuntimeError(f"{folder} holds no artifact, so that what the teacher cost is not known")
    return artifact.facts


def run_arms(arms: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Result]:
    """Return the results of all arms for each seed, each run in a process of its own; those of `folder` are kept."""
    results = list[Result]()
    with served_model("embedded:teacher", RuntimeConfig(num_threads=1)) as served:
        for seed in seeds:
            for arm in arms:
                done = folder / f"{arm.replace(' ', '-')}-{seed}.json"
                if not done.exists():
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        result = pool.apply(run_arm, (arm, seed, served.url, folder))
                    write_atomic(done, json.dumps(asdict(result)).encode())
                results.append(Result(**json.loads(done.read_bytes())))
    return results


@dataclass(frozen=True, slots=True)
class Point:
    """An arm over its seeds."""

    arm: str
    accuracy: Spread
    mean: float
    usd: float
    completion_tokens: float
    prompt_tokens: float


def points_of(results: Sequence[Result]) -> list[Point]:
    """Return the mean over seeds of each arm, in the order of the results."""
    points = []
    for arm in dict.fromkeys(result.arm for result in results):
        runs = [result for result in results if result.arm == arm]
        accuracies = [run.accuracy for run in runs]
        means = (mean(getattr(run, name) for run in runs) for name in ("usd", "completion_tokens", "prompt_tokens"))
        points.append(Point(arm, spread(accuracies), mean(accuracies), *means))
    return points


def lines_of(points: Sequence[Point]) -> list[str]:
    """Return the table as printed."""
    lines = [f"{'':<17} {'accuracy (range over seeds)':<30} {'teacher USD':>12} {'completion':>11} {'prompt':>9}"]
    for one in points:
        accuracy = f"{one.mean:.1%} ({one.accuracy.low:.1%}..{one.accuracy.high:.1%})"
        lines.append(
            f"{one.arm:<17} {accuracy:<30} {one.usd:>12.4f} {one.completion_tokens:>11,.0f} {one.prompt_tokens:>9,.0f}"
        )
    return lines


def page_of(points: Sequence[Point]) -> str:
    """Return a page with the accuracy of each arm over the money of the teacher."""
    with drawing():
        figure, (axis,) = panels(4.2)
        inks = {"sft": "sft", "self-trained": "self_training", "scored": "on_policy"}
        for kind, ink in inks.items():
            shown = [one for one in points if one.arm.startswith(kind)]
            cents = [100 * one.usd for one in shown]
            axis.plot(cents, [100 * one.mean for one in shown], "o-", color=stage_ink(ink), label=kind)
            for one, x in zip(shown, cents, strict=True):
                ends = [100 * one.accuracy.low, 100 * one.accuracy.high]
                axis.plot([x, x], ends, color=stage_ink(ink), linewidth=4, alpha=0.3)
                axis.annotate(one.arm, (x, 100 * one.mean), (7, -11), textcoords="offset points", color=INK)
        axis.set_xlabel("US cents for the teacher")
        axis.set_title("Accuracy on held-out prompts, %")
        axis.set_xlim(left=0.0)
        axis.grid(axis="y")
        svg = to_svg(figure, "money", "Accuracy on held-out prompts by the money that the teacher cost")
    table = escape("\n".join(lines_of(points)))
    return _PAGE.format(style=style_sheet(REPORT_CSS), svg=svg, table=table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--folder", type=Path, default=Path("runs/chat_teacher"))
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    results = run_arms(chosen.arms, chosen.seeds, chosen.folder)
    points = points_of(results)
    page = chosen.folder / "report.html"
    write_atomic(page, page_of(points).encode())
    figures = {"points": [asdict(one) for one in points], "runs": [asdict(one) for one in results]}
    publish([*lines_of(points), f"page {page}"], figures, chosen.json)


if __name__ == "__main__":
    main()
