"""The demo's promise over seeds: how far the student comes, and how much of that is luck of a seed.

Claim
    On `configs/demo.yaml`, SFT lifts the student's accuracy on held-out prompts, and on-policy distillation after it
    lifts it again or keeps it, with every seed and not only with the one a README shows.

Measured
    The whole flow once a seed (`sft.trainer.seed` and `on_policy.trainer.seed`: data order, the student's sampling), as
    `stillhouse distill` runs it, each in a process of its own. All runs share a store, so prompts, rollouts, dataset
    and the evaluations of base and teacher are made once and reused: what varies is training and its evaluation alone.
    Accuracies are shares of held-out prompts; the two improvements are paired, that of one seed's student over the
    one it was trained from. Median and range over seeds, and the half-width of the widest confidence interval
    of a single accuracy, below which a difference says little.

Learnt
    Seeds 0, 1, 2 on two busy cores, 202 held-out prompts, one sample each at temperature 1 (one accuracy is known to
    about +-6.8 points): base 45.5 %, after SFT 63.4 % (61.9..63.9), after on-policy 88.1 % (87.6..89.1), teacher
    99.5 %. SFT over base +17.8 points (+16.3..+18.3), on-policy over SFT +25.7 (+23.8..+26.2). On-policy distillation
    ends in nearly the same place wherever SFT left the student.

    Settings of on-policy distillation, a run a seed. The KL of the sampled tokens took 100 steps of 64 prompts to
    86.6 % (84.7..89.1), 671,000 tokens. The exact reverse KL gives each token its whole distribution: 60 steps of 32
    prompts at twice the learning rate are 199,000 tokens. 40 steps of 64 gave 87.1 % (86.1..89.6), at four times
    the rate 85.6 % (84.2..85.6); the forward KL 77 %.

    Fewer tokens, seeds 0 to 5, two quiet cores, median (range):

        demo as it is                               87.1 % (86.1..88.6)    100,000 sampled    44.4 s (42.2..46.4)
        5 batches, 80 updates by Muon               86.1 % (81.7..87.6)     16,000            14.3 s (13.7..14.8)
        7 batches, 84 updates by AdamW              85.1 % (83.7..87.1)     23,000            16.0 s (15.4..16.7)

    Batches have 64 prompts in 4 substeps, each trained on four times (Muon, 1e-3) or three (AdamW, 7e-4), with
    warmup_steps 4 and ema_decay 0.9. So a sixth of the tokens and a third of the time cost a point in the median and
    two in the mean (paired by seed -2.0 +- 1.3). Of other ways with seeds 0, 1, 2: 60 updates by Muon 86.6 %
    (84.2..88.1), at three and ten times the rate 81.7 and 47.5 %; 60 by AdamW 84.7 %. A server of the same machine
    that samples one batch ahead (max_staleness 1) saves 6 % of the time: both cores are busy, and training slows down.
    Without warm-up and running mean, 20 steps at twice the rate end at 38 % (one seed).
"""

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.frame.distill import run_distill
from benchmarks.frame.rounds import Spread, argument_parser, publish, spread
from stillhouse.config import load_config

_IMPROVEMENTS: Final = {"sft over base": ("base", "sft"), "on_policy over sft": ("sft", "on_policy")}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One model's share of right answers with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SeedRun:
    """What the run of one seed measured and where its report is."""

    seed: int
    accuracies: dict[str, Accuracy]
    """By model: base, sft, on_policy, teacher."""
    cached: dict[str, bool]
    """By stage, whether an earlier run's result was used."""
    report: str
    seconds: dict[str, float] = field(default_factory=dict)
    """By training, as the closing table has them; without those that came from the cache."""


@dataclass(frozen=True, slots=True)
class SeedsReport:
    """Figures over all seeds."""

    runs: list[SeedRun]
    accuracies: dict[str, Spread]
    improvements: dict[str, Spread]
    seconds: dict[str, Spread]
    half_width: float
    """Of the widest interval of a single accuracy."""

    def lines(self) -> list[str]:
        """The figures as printed."""
        seeds = ", ".join(str(run.seed) for run in self.runs)
        models = [f"  {name:<18} {_percent(figures)}" for name, figures in self.accuracies.items()]
        gains = [f"  {name:<18} {_points(figures)}" for name, figures in self.improvements.items()]
        seconds = [
            f"  {name:<18} {figures.median:.1f} ({figures.low:.1f}..{figures.high:.1f})"
            for name, figures in self.seconds.items()
        ]
        return [
            f"accuracy on held-out prompts, median (range) over seeds {seeds}",
            *models,
            f"improvement in points, paired by seed (one accuracy is known to about +-{100 * self.half_width:.1f})",
            *gains,
            "seconds of training",
            *seconds,
        ]


def _percent(figures: Spread) -> str:
    return f"{figures.median:.1%} ({figures.low:.1%}..{figures.high:.1%})"


def _points(figures: Spread) -> str:
    return f"{100 * figures.median:+.1f} ({100 * figures.low:+.1f}..{100 * figures.high:+.1f})"


def run_seed(config_path: Path, overrides: Sequence[str], store: Path, seed: int) -> SeedRun:
    """One run of the flow with its seeds set, in this process.

    Raises:
        StillhouseError: the config is wrong or the run failed.
    """
    config = load_config(
        config_path,
        [f"runtime.store={store}", *overrides, f"sft.trainer.seed={seed}", f"on_policy.trainer.seed={seed}"],
    )
    published = run_distill(config, store)
    from tasks.run.summary import SUMMARY_COLUMNS

    accuracies = {
        name: Accuracy(facts["accuracy"], facts["accuracy_low"], facts["accuracy_high"])
        for name, facts in published.evaluations.items()
    }
    rows = [dict(zip(SUMMARY_COLUMNS, row, strict=True)) for row in published.summary]
    seconds = {
        row["stage"]: float(row["seconds"])
        for row in rows
        if row["stage"] in published.students and not published.cached[row["stage"]]
    }
    return SeedRun(seed, accuracies, published.cached, published.report, seconds)


def run_seeds(config_path: Path, overrides: Sequence[str], store: Path, seeds: Sequence[int]) -> list[SeedRun]:
    """Runs of all seeds one after the other, each in a process of its own, as from the shell."""
    runs = []
    for seed in seeds:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            runs.append(pool.apply(run_seed, (config_path, overrides, store, seed)))
    return runs


def summarise(runs: Sequence[SeedRun]) -> SeedsReport:
    """Median and range over the runs, which must have measured the same models."""
    by_model: Mapping[str, list[float]] = {
        name: [run.accuracies[name].value for run in runs] for name in runs[0].accuracies
    }
    improvements = {
        label: spread([to - of for of, to in zip(by_model[before], by_model[after], strict=True)])
        for label, (before, after) in _IMPROVEMENTS.items()
        if before in by_model and after in by_model
    }
    return SeedsReport(
        runs=list(runs),
        accuracies={name: spread(values) for name, values in by_model.items()},
        improvements=improvements,
        seconds={
            name: spread([run.seconds[name] for run in runs])
            for name in runs[0].seconds
            if all(name in run.seconds for run in runs)
        },
        half_width=max((one.high - one.low) / 2 for run in runs for one in run.accuracies.values()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--store", type=Path, default=Path("runs/bench"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args(arguments)
    report = summarise(run_seeds(chosen.config, chosen.overrides, chosen.store, chosen.seeds))
    publish(report.lines(), asdict(report), chosen.json)


if __name__ == "__main__":
    main()
