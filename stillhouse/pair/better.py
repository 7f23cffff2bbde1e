"""Whether the teacher is better than the student at all, on prompts that both have answered."""

from stillhouse.evaluation.comparison import Values
from stillhouse.evaluation.paired import Difference, paired_difference
from stillhouse.pair.finding import PairFinding
from stillhouse.verification.intervals import CONFIDENCE

_UNKNOWN = (
    "no prompt has an expected answer or a reward, so that nobody can say; give prompts an expected_answer, or set "
    "tools.rewards_file"
)


def better_finding(name: str, teacher: Values, student: Values) -> PairFinding:
    """Compares by accuracy, or by reward where no answer is verified.

    Args:
        name: of the finding.
        teacher: values by metric and prompt.
        student: the same.
    """
    for metric in ("accuracy", "reward"):
        difference = paired_difference(teacher.get(metric, {}), student.get(metric, {}))
        if difference is not None:
            return _judged(name, difference, metric)
    return PairFinding(name, "unknown", _UNKNOWN)


def _judged(name: str, found: Difference, metric: str) -> PairFinding:
    scale, unit = (100.0, "%") if metric == "accuracy" else (1.0, "")
    teacher, student, low, high = (scale * value for value in (found.mean, found.reference, found.low, found.high))
    seen = (
        f"{metric} {teacher:.3g}{unit} against the student's {student:.3g}{unit} on {found.num_prompts} prompts: "
        f"{teacher - student:+.3g} ({CONFIDENCE:.0%} interval {low:+.3g} to {high:+.3g})"
    )
    if found.high < 0.0:
        return PairFinding(
            name,
            "no",
            f"{seen}: it is worse, and a student seldom passes its teacher. Take another teacher, or a chat template, "
            "tools and max_tokens with which this one answers as it should",
        )
    if found.low > 0.0:
        return PairFinding(name, "fine", seen)
    return PairFinding(name, "unknown", f"{seen}: not shown to be better; --prompts with a higher number tells more")
