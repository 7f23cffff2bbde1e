"""E14: several teachers, and how they share the loss."""

import random
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.science.exams import Exam
from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult
from benchmarks.science.lab import Lab
from benchmarks.science.methods import on_policy
from benchmarks.science.models import write_new_model
from benchmarks.science.tasks.chain import LETTERS, ChainKind, distinct_chains
from benchmarks.science.tasks.rows import Question, write_questions
from benchmarks.science.training import Course, Training
from stillhouse.config import OnPolicyTeacher
from stillhouse.config.on_policy_prompts import SourceShare
from stillhouse.config.training import SftSource
from stillhouse.prompts.parse import PROMPT_SOURCE

_DOMAINS: Final = {"long": ChainKind(LETTERS[:4], 10), "short": ChainKind(LETTERS[4:8], 3)}
_PROMPTS: Final = {"long": 56, "short": 8}
"""Of one step."""
_NUM_QUESTIONS: Final = 600
"""Of each domain, a little less than there are of the short one."""
_NUM_EXAM: Final = 256
_BALANCES: Final = {
    "none": "both, plain sum",
    "teachers": "both, equal shares",
    "gaps": "both, shares by gap",
    "spreads": "both, equal spreads",
}


@dataclass(frozen=True)
class _School:
    """One seed's base student, which doubts half of the letters of each domain, and a teacher of each domain."""

    lab: Lab
    seed: int

    @property
    def base(self) -> Path:
        """Right one long chain in seven and every second short one."""
        start = write_new_model(self.lab.folder / "models" / f"random-{self.seed}", self.seed)
        return self._tuned(start, list(_DOMAINS), 8_000, self.lab.base_wrong, num_epochs=2, learning_rate=4e-3)

    def teacher(self, domain: str) -> Path:
        """The base fine-tuned on right chains of the domain alone."""
        return self._tuned(self.base, [domain], 4_000, 0.0, num_epochs=1, learning_rate=2e-3)

    def student(self, domains: list[str], **settings: Any) -> Course:
        """The base distilled from the teachers of the domains, on as many prompts of each as a step has."""
        questions = [question for domain in domains for question in _questions(domain)[_NUM_EXAM:]]
        teachers = [OnPolicyTeacher(name=name, model=str(self.teacher(name)), routes=(name,)) for name in domains]
        counts = {domain: self.lab.num(_PROMPTS[domain]) for domain in domains}
        config = on_policy(
            self.lab,
            self.seed,
            prompts_per_step=sum(counts.values()),
            learning_rate=5e-4,
            max_tokens=max(_DOMAINS[domain].max_tokens for domain in domains),
            route_by=PROMPT_SOURCE,
            teachers=teachers,
            mixture=[SourceShare(source=name, num_prompts=count) for name, count in counts.items()],
            **settings,
        )
        training = Training(
            start=self.base, config=config, measure_every=10, prompts=write_questions(self.lab.data, questions)
        )
        num_exam = self.lab.num(_NUM_EXAM, 16)
        exams = {name: Exam.of(_questions(name)[:num_exam], kind.max_tokens) for name, kind in _DOMAINS.items()}
        return self.lab.course(training, exams)

    def _tuned(self, start: Path, domains: list[str], num_rows: int, wrong_share: float, **settings: Any) -> Path:
        files = [
            replace(self.lab, chains=_DOMAINS[domain]).rows(num_rows, wrong_share, self.seed) for domain in domains
        ]
        sources = tuple(SftSource(path=str(path.absolute())) for path in files)
        config = self.lab.sft(files[0], self.seed, **settings).model_copy(
            update={"sources": sources, "batch_size": self.lab.num(64, 16)}
        )
        return self.lab.course(Training(start=start, config=config, measure_every=1_000_000), exams={}).folder


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    school = _School(lab, seed)
    together = {balance: school.student(list(_DOMAINS), balance=balance) for balance in _BALANCES}
    curves: dict[str, Curve] = {}
    figures: dict[str, float] = {}
    for domain in _DOMAINS:
        alone = curves[f"{domain}: its teacher alone"] = Curve.of(school.student([domain]), domain)
        for balance, course in together.items():
            curve = curves[f"{domain}: {_BALANCES[balance]}"] = Curve.of(course, domain)
            gained, headroom = (one.final - one.points[0].accuracy for one in (curve, alone))
            figures[f"{balance}_gap_{domain}"] = 100 * (alone.final - curve.final)
            figures[f"{balance}_recovered_{domain}"] = 100 * gained / headroom if headroom else 0.0
            figures[f"{balance}_share_{domain}"] = course.points[-1].metrics[f"teacher_share/{domain}"]
    recovered = {
        balance: statistics.fmean(figures[f"{balance}_recovered_{domain}"] for domain in _DOMAINS)
        for balance in _BALANCES
    }
    figures |= {f"{balance}_recovered": value for balance, value in recovered.items()}
    figures |= {
        f"{balance}_gain": recovered[balance] - recovered["none"] for balance in ("teachers", "gaps", "spreads")
    }
    return SeedResult(seed, curves, figures)


def _questions(domain: str) -> list[Question]:
    chains = distinct_chains(random.Random(1), _NUM_QUESTIONS, _DOMAINS[domain])
    return [replace(chain.question(), source=domain) for chain in chains]


EXPERIMENT = Experiment(
    name="e14",
    title="Several teachers",
    setup="A base that doubts half of the letters of two domains, chains of ten letters and chains of three others, "
    "and two teachers: the base fine-tuned on right chains of one domain alone, which forgets the other. The "
    "base is distilled by the sampled KL for 40 steps from each teacher alone, and from both together on the "
    "same prompts, 56 long ones and 8 short ones a step: an eighth of the prompts and a twentieth of the tokens "
    "are short. Each domain has 256 questions. A gap is to the student of the one teacher, in points, and what "
    "that student gains over the base is the headroom. Open-MOPD (2026) recovers 35.6 % of the headroom of "
    "three teachers with the plain sum, and 83.4 % with shares by gap and rewards that follow the student, as "
    "they do here.",
    claims=(
        Claim("the plain sum leaves a gap of 5 points or more in the short domain", "none_gap_short", 5.0),
        Claim("equal shares recover more of the headroom, as the mean over domains", "teachers_gain", 0.0),
        Claim("so do shares by gap", "gaps_gain", 0.0),
        Claim("so do equal spreads", "spreads_gain", 0.0),
        Claim("equal shares cost the long domain 5 points at most", "teachers_gap_long", 5.0, is_upper=True),
    ),
    run=run,
    curves_over="step",
    notes="Equal shares halve the long domain's part of the loss, and after as many steps its student is behind: they "
    "move steps from one domain to the other, where these gain more. Spreads turn down whatever scatters more "
    "than the tokens of both domains together, which is the short one here, and was the domain of largest "
    "gradient in DN-MOPD (2026), whose loss is a mean over answers before it is one over tokens.",
)
