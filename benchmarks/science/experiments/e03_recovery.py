"""E3: a skill lost to fine-tuning on new facts comes back by on-policy distillation from the model before."""

import random
from pathlib import Path

from benchmarks.science.exams import Exam
from benchmarks.science.findings import Claim, Curve, CurvePoint, Experiment, SeedResult, times
from benchmarks.science.lab import CHAIN, Lab
from benchmarks.science.methods import EXACT, on_policy
from benchmarks.science.tasks import facts
from benchmarks.science.tasks.rows import write_rows
from benchmarks.science.training import Course, Training

_FACTS = "facts"
_REPEATS = 30
"""Times that each fact is seen."""


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    original = lab.teacher(seed)
    exams = {CHAIN: lab.exam, _FACTS: Exam.of(facts.questions(), facts.MAX_TOKENS)}
    courses: dict[str, Course] = {}
    for share, name in ((1.0, "facts alone"), (0.7, "7 facts to 3 chains")):
        tuned = courses[name] = _tuned(lab, seed, original, share, exams)
        courses[f"{name}, then on-policy"] = _recovered(lab, seed, tuned.folder, original, exams)
    curves = {f"{name}: {exam}": Curve.of(course, exam) for name, course in courses.items() for exam in (CHAIN, _FACTS)}
    before = courses["facts alone"].points[0].accuracies
    for exam, accuracy in before.items():
        curves[f"before: {exam}"] = Curve([CurvePoint(0, accuracy, 0.0, 0.0)])
    after, lost = (courses[f"facts alone{then}"].points[-1].accuracies for then in (", then on-policy", ""))
    figures = {
        "skill_left": times(lost[CHAIN], before[CHAIN]),
        "skill_recovered": times(after[CHAIN], before[CHAIN]),
        "facts_kept": times(after[_FACTS], lost[_FACTS]),
    }
    return SeedResult(seed, curves, figures)


def _tuned(lab: Lab, seed: int, original: Path, share: float, exams: dict[str, Exam]) -> Course:
    """The original fine-tuned on the facts, which are this share of the rows; the others are right chains."""
    rows = facts.rows() * lab.num(_REPEATS, 1)
    chains = lab.prompt_chains[: round(len(rows) * (1 - share) / share)]
    path = write_rows(lab.data, [*rows, *(chain.row(random.Random(0)) for chain in chains)])
    config = lab.sft(path, seed, num_epochs=1, learning_rate=3e-3).model_copy(update={"batch_size": 16})
    return lab.course(Training(start=original, config=config, measure_every=1_000_000), exams)


def _recovered(lab: Lab, seed: int, start: Path, original: Path, exams: dict[str, Exam]) -> Course:
    config = on_policy(lab, seed, num_steps=60, learning_rate=1e-3, **EXACT)
    training = Training(start=start, config=config, measure_every=10, prompts=lab.prompts, teacher=original)
    return lab.course(training, exams)


EXPERIMENT = Experiment(
    name="e3",
    title="Recovery of a skill after fine-tuning on new facts",
    setup="A model that knows chains is fine-tuned on 64 codes of places, by themselves or with chains among them, and "
    "then distilled on-policy on chains alone for 60 steps, with the model before as its teacher. Thinking Machines "
    "(2025) report skill and facts of 85 and 18 before, 45 and 43 after documents alone, 79 and 36 after documents "
    "with 30 % chat among them, and of 83 and 41 after distillation.",
    claims=(
        Claim("fine-tuning on facts alone costs skill", "skill_left", 0.95, is_upper=True),
        Claim("on-policy distillation brings back 95 % of the skill", "skill_recovered", 0.95),
        Claim("and keeps 90 % of the facts", "facts_kept", 0.9),
    ),
    run=run,
)
