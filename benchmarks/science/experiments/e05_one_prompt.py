"""E5: one prompt, sampled many times a step."""

import random
from pathlib import Path
from typing import Any

from benchmarks.science.exams import Exam
from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult, times
from benchmarks.science.lab import CHAIN, Lab
from benchmarks.science.methods import EXACT, on_policy
from benchmarks.science.tasks.chain import NUM_DIGITS, Chain
from benchmarks.science.tasks.rows import PromptFiles, write_questions
from benchmarks.science.training import Course, Training

_SAME_LETTERS = "its letters"
_NUM_STEPS = 20
_ROLLOUTS = 256


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base, teacher = lab.base(seed), lab.teacher(seed)
    chain = lab.prompt_chains[seed]
    one = write_questions(lab.data, [chain.question()])
    exams = {CHAIN: lab.exam, _SAME_LETTERS: Exam.of(_same_letters(lab, chain), lab.chains.max_tokens)}

    def course(prompts: PromptFiles, by: Path | None, **settings: Any) -> Course:
        config = on_policy(lab, seed, num_steps=_NUM_STEPS, **settings)
        return lab.course(Training(start=base, config=config, measure_every=2, prompts=prompts, teacher=by), exams)

    single: dict[str, Any] = {"prompts_per_step": 1, "group_size": _ROLLOUTS}
    courses = {
        "256 prompts, on-policy": course(lab.prompts, teacher, prompts_per_step=_ROLLOUTS, **EXACT),
        "one prompt, on-policy": course(one, teacher, **single, **EXACT),
        "one prompt, GRPO": course(one, None, **(single | {"kl_coef": 0.0, "reward_coef": 1.0})),
    }
    curves = {
        f"{name}: {exam}": Curve.of(taken, exam) for name, taken in courses.items() for exam in (CHAIN, _SAME_LETTERS)
    }
    reachable = lab.exam.accuracy_of(teacher)
    finals = {name: taken.points[-1].accuracies for name, taken in courses.items()}
    figures = {
        "share_of_teacher": times(finals["one prompt, on-policy"][CHAIN], reachable),
        "share_of_teacher_on_its_letters": times(finals["one prompt, on-policy"][_SAME_LETTERS], reachable),
        "points_over_grpo": 100 * (finals["one prompt, on-policy"][CHAIN] - finals["one prompt, GRPO"][CHAIN]),
    }
    return SeedResult(seed, curves, figures)


def _same_letters(lab: Lab, chain: Chain) -> list[Any]:
    """Other chains of the letters that the prompt has."""
    rng = random.Random(f"letters of {chain.text}")
    drawn = {
        Chain(rng.randrange(NUM_DIGITS), "".join(rng.choices(chain.letters, k=len(chain.letters)))): None
        for _ in range(lab.num(256, 16))
    }
    return [one.question() for one in drawn if one != chain]


EXPERIMENT = Experiment(
    name="e5",
    title="One prompt",
    setup="Twenty steps of 256 trajectories, all of one prompt or each of a prompt of its own. The one prompt is a "
    "chain of six letters, so that it asks for six of the sixteen operations at most; chains of these letters "
    "alone are a second exam.",
    claims=(
        Claim("one prompt is enough to come near the teacher: 95 % of its accuracy (Thinking Machines, 2025)",
              "share_of_teacher", 0.95),
        Claim("the same on chains of the prompt's own letters", "share_of_teacher_on_its_letters", 0.95),
        Claim("GRPO gains less from the one prompt", "points_over_grpo", 0.0),
    ),
    run=run,
    curves_over="step",
)  # fmt: skip
