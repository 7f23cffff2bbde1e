"""The rule by which a student becomes the champion, applied to a comparison; without side effects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stillhouse.config.promotion import PromotionConfig
from stillhouse.evaluation.comparison import MetricComparison, line_of

_UNITS: Final[dict[str, tuple[str, float, int]]] = {
    "accuracy": ("%", 100.0, 1),
    "reward": ("", 1.0, 3),
    "mean_completion_tokens": ("", 1.0, 1),
    "truncated_share": ("%", 100.0, 1),
    "valid_tool_call_share": ("%", 100.0, 1),
}
"""Unit, factor and decimal places."""


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of a promotion."""

    student: str
    passed: bool
    finding: str
    """The value seen and the value required."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a promotion, and why."""

    promoted: str | None
    """Name of the new champion; None where there is no change."""
    reference: str
    """Name of the model that the students were compared with: `champion`, or `base` while there is none."""
    checks: tuple[Check, ...]
    """All conditions of all students."""
    reason: str
    """For people, in a sentence or two."""

    @property
    def verdict(self) -> str:
        """Return the decision and its reason."""
        if self.promoted is not None:
            return f"{self.promoted} is the new champion. {self.reason}"
        kept = "There is no champion yet." if self.reference == "base" else "The champion stays."
        return f"{kept} {self.reason}"


def decide(
    lines: Sequence[MetricComparison],
    students: Sequence[str],
    reference: str,
    config: PromotionConfig,
) -> Decision:
    """Return the best student on `config.metric` among those that pass every check; none where none does.

    Several students get more chances to look better by luck, so that each has to pass at a share of `config.level`
    (Bonferroni). `reference` is the champion, or the base while there is none, and `lines` compare with it.
    """
    checks = tuple(
        Check(student, passed, finding)
        for student in students
        for passed, finding in _findings(lines, student, reference, config.level / len(students), config)
    )
    passed = [name for name in students if all(check.passed for check in checks if check.student == name)]
    if not passed:
        blocked = " ".join(check.finding for check in checks if not check.passed)
        return Decision(None, reference, checks, blocked or "There is no student to compare.")
    gains = {line.model: line.gain[0] for line in lines if (line.metric, line.tag) == (config.metric, None)}
    best = max(passed, key=lambda name: gains[name])
    return Decision(best, reference, checks, " ".join(check.finding for check in checks if check.student == best))


def _findings(
    lines: Sequence[MetricComparison], student: str, reference: str, level: float, config: PromotionConfig
) -> Iterator[tuple[bool, str]]:
    """Yield for each condition if it is met, with the value seen and the value required."""
    line = line_of(lines, student, config.metric)
    num_prompts = 0 if line is None else line.difference.num_prompts
    if line is None or num_prompts < config.min_prompts:
        yield (
            False,
            (
                f"{student} and {reference} have {num_prompts} held-out prompts with {config.metric} in common; "
                f"promotion.min_prompts asks for {config.min_prompts}."
            ),
        )
        return
    yield _is_better(line, reference, level)
    for metric, margin in config.no_worse.items():
        line = line_of(lines, student, metric)
        if line is None:
            yield False, f"{metric} of {student} and {reference} is not known on the same prompts."
        else:
            passed = line.gain[1] >= -margin
            verb = "stays within" if passed else "may be worse by more than"
            yield passed, f"{student} {verb} the margin of {margin:g}: {_describe(line)}."
    for line in lines:
        is_of_tag = (line.model, line.metric) == (student, config.metric) and line.tag is not None
        if is_of_tag and line.p_worse < config.level:
            yield (
                False,
                (
                    f"{student} is worse than {reference} on prompts tagged {line.tag}: {_describe(line)}, "
                    f"{_p(line.p_worse)}, below {config.level:.2g}."
                ),
            )


def _is_better(line: MetricComparison, reference: str, level: float) -> tuple[bool, str]:
    is_better = line.p_better < level
    verb, bound = ("is better than", "below") if is_better else ("is not better than", "not below")
    return is_better, f"{line.model} {verb} {reference}: {_describe(line)}, {_p(line.p_better)}, {bound} {level:.2g}."


def _describe(line: MetricComparison) -> str:
    """Return a line of a comparison in words, without the models' names."""
    result = line.difference
    sign, scale, places = _UNITS.get(line.metric, _UNITS["accuracy"])
    mean, reference = (f"{scale * value:.{places}f}" for value in (result.mean, result.reference))
    difference, low, high = (f"{scale * value:+.{places}f}" for value in (result.difference, result.low, result.high))
    points = " points" if sign == "%" else sign
    return (
        f"{line.metric.replace('_', ' ')} {mean}{sign} against {reference}{sign} on {result.num_prompts} prompts, "
        f"{difference}{points} ({low} to {high})"
    )


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
