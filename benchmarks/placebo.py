"""Placebos over seeds: does promotion turn an uninformative teacher down, and accept the demo's?

Claim
    With `promotion.placebo`, a student that was trained on-policy is promoted if its teacher told it something, and
    else at most at the nominal rate.

Measured
    On-policy distillation of `configs/demo.yaml` from the base, without SFT and in half of its steps, once a teacher
    and a seed, as `stillhouse distill` runs it, with the decision of the run. Three teachers: `demo`, the demo's;
    `noise`, the student itself with Gaussian noise on its weights, of a twentieth of each tensor's standard deviation;
    `random`, the student's architecture with weights drawn anew. A seed is that of the training and of the teacher's
    weights. Accuracies are shares of held-out prompts. All runs share a store: what is there already is not trained
    again, so that a benchmark which was stopped goes on.

Learnt
    150 held-out prompts, one sample each; medians and ranges in percent, base 44.7:

        teacher  seeds  promoted  on_policy          placebo_shuffled   placebo_constant
        demo     3      3 of 3    68.7 (63.3..70.7)  1.3 (0.0..11.3)    9.3 (3.3..30.0)
        noise    4      0 of 4    40.3 (37.3..42.7)  12.0 (0.0..26.7)   8.0 (2.0..23.3)
        random   1      0 of 1    0.0                6.0                10.7

    The demo's learning rate suits its exact divergence. At that rate the arms, which have the noise of a policy
    gradient, lose most of what the base can in 8 steps, and the students of noisy teachers beat both arms each time
    (p of 0.006 and below). What turned them down is the start, which they did not beat (p of 0.72 and above): it is
    there for that. By the sampled KL at 3e-4, one seed, arms stay near the base: the student reached 52.7, shuffled
    47.3, constant 34.0, and with 30 steps and 150 prompts it was turned down (p of 0.08 against the base). Few runs
    bound a rate loosely; tests/stillhouse/evaluation/test_promotion_over_seeds.py has that of the rule itself, over
    1,000 simulated seeds.
"""

import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args
from uuid import uuid4

from benchmarks.frame.distill import run_distill
from benchmarks.frame.rounds import argument_parser, publish, spread
from stillhouse.config import load_config

Teacher = Literal["demo", "noise", "random"]

_NOISE: Final = 0.05
"""Standard deviation of the noise, as a share of that of the tensor it is added to."""
_STUDENT: Final = "embedded:student"
_SHORT: Final = ("sft.enabled=false", "on_policy.num_steps=30", "evaluation.max_prompts=150")
"""What makes a run of the demo short enough for many of them."""


@dataclass(frozen=True, slots=True)
class PlaceboRun:
    """One training, its placebos and the decision."""

    teacher: Teacher
    seed: int
    promoted: bool
    verdict: str
    accuracies: dict[str, float | None]
    """By model: base, on_policy, placebo_shuffled, placebo_constant."""


def table(runs: Sequence[PlaceboRun]) -> list[str]:
    """A row for each teacher: how many students were promoted, and median and range of accuracies in percent."""
    models = list(runs[0].accuracies)
    rows = [f"{'teacher':<8} {'promoted':<9}" + "".join(f"{model:<24}" for model in models)]
    for teacher in dict.fromkeys(run.teacher for run in runs):
        mine = [run for run in runs if run.teacher == teacher]
        shares = [spread([100 * (run.accuracies[model] or 0.0) for run in mine]) for model in models]
        figures = [f"{share.median:.1f} ({share.low:.1f}..{share.high:.1f})" for share in shares]
        promoted = f"{sum(run.promoted for run in mine)} of {len(mine)}"
        rows.append(f"{teacher:<8} {promoted:<9}" + "".join(f"{figure:<24}" for figure in figures))
    return [row.rstrip() for row in rows]


def uninformative(teacher: Teacher, seed: int, folder: Path) -> Path:
    """The folder of a teacher that knows nothing, written below `folder` if it is not there."""
    import torch
    from transformers import AutoModelForCausalLM

    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.serving.models import load_model

    place = folder / f"{teacher}-{seed}"
    if (place / "tokenizer_config.json").is_file():
        return place
    torch.manual_seed(seed)
    model = load_model(_STUDENT, device="cpu", dtype="float32")
    if teacher == "random":
        model = AutoModelForCausalLM.from_config(model.config)
    else:
        with torch.no_grad():
            for weights in model.parameters():
                # A tensor of equal values, such as a norm's, has no spread to go by.
                scale = weights.std() if weights.numel() > 1 else 0.0
                weights += _NOISE * scale * torch.randn_like(weights)
    model.save_pretrained(place)
    load_tokenizer(_STUDENT).save_pretrained(place)
    return place


def run_one(config_path: Path, overrides: Sequence[str], store: Path, teacher: Teacher, seed: int) -> PlaceboRun:
    """One run of the flow, in this process.

    Raises:
        StillhouseError: the config is wrong or the run failed.
    """
    settings = [f"runtime.store={store}", *_SHORT, f"on_policy.seed={seed}"]
    if teacher != "demo":
        settings.append(f"on_policy.teacher={uninformative(teacher, seed, store / 'teachers')}")
    # A registered model of its own, so that each begins without a champion, also when it is run again.
    settings += [f"tracking.register_as=placebo-{uuid4().hex}", "promotion.enabled=true"]
    settings.append("promotion.placebo.enabled=true")
    published = run_distill(load_config(config_path, [*settings, *overrides]), store)
    verdict = str(published.promotion)
    accuracies = {name: facts["accuracy"] for name, facts in published.evaluations.items() if name != "teacher"}
    return PlaceboRun(teacher, seed, "is the new champion" in verdict, verdict, accuracies)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--store", type=Path, default=Path("runs/bench"))
    parser.add_argument("--teachers", nargs="+", default=list(get_args(Teacher)), choices=get_args(Teacher))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    chosen = parser.parse_args(arguments)
    runs = []
    for teacher in chosen.teachers:
        for seed in chosen.seeds:
            # As from the shell, each in a process of its own.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                runs.append(pool.apply(run_one, (chosen.config, chosen.overrides, chosen.store, teacher, seed)))
            print(f"{teacher} {seed}: {runs[-1].verdict}", flush=True)
    publish(table(runs), {"runs": [asdict(run) for run in runs]}, chosen.json)


if __name__ == "__main__":
    main()
