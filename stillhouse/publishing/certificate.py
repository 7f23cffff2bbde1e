"""The certificate of a form: what was compared with the student, how far it may differ, and whether it does."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from stillhouse.errors import TrainingError
from stillhouse.evaluation.paired import Difference
from stillhouse.publishing.next_tokens import NextTokens
from stillhouse.publishing.rendering import Differences
from stillhouse.report.format import interval, metric, percent
from stillhouse.report.markdown import plain, table
from stillhouse.store.atomic import write_atomic
from stillhouse.types import JsonObject

CERTIFICATE_FILE: Final = "certificate.json"
MAX_KL: Final = 0.02
"""Nats a token. Measured of a SmolLM2-135M student in float32: f16 0.00002, bf16 0.0003, q8_0 0.0012."""
MAX_KL_OF_FEW_BITS: Final = 0.1
"""The same of fewer than 8 bits: q6_k 0.004, q4_k_m 0.03, q3_k_m 0.07, q4_0 0.11, q2_k 0.14, q5_k_m 0.17."""
MAX_LOSS: Final = 0.02
"""Of accuracy, in shares of prompts."""
_SIGNIFICANT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    student: str
    form: str
    bound: str
    """How far the form may differ; empty where it is only told."""
    problem: str | None = None
    """Why the form is refused."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The checks of one form in its own runtime."""

    student: str
    """Identity of the student."""
    form: str
    runtime: str
    checks: tuple[Check, ...]

    @property
    def problems(self) -> list[str]:
        return [f"{check.name}: {check.problem}" for check in self.checks if check.problem]

    def require(self) -> None:
        """Raise TrainingError if a check failed."""
        if problems := self.problems:
            raise TrainingError(
                f"{self.form} under {self.runtime} is not the student {self.student}:\n  " + "\n  ".join(problems)
            )

    def write(self, folder: Path) -> None:
        """Write the certificate into a form's folder, as JSON and into its card."""
        body = {"certificate": asdict(self), "refused": bool(self.problems)}
        write_atomic(folder / CERTIFICATE_FILE, orjson.dumps(body, option=orjson.OPT_INDENT_2))
        card = folder / "README.md"
        about = f"{self.form} under {self.runtime}, compared with the trained student on held-out prompts, greedily."
        section = f"## Certificate\n\n{plain(about)}\n\n{table(*self.rows)}"
        write_atomic(card, f"{card.read_text(encoding='utf-8')}\n{section}".encode())

    @property
    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the heads and the rows of its table."""
        cells: list[tuple[str, ...]] = [(check.name, check.student, check.form, check.bound) for check in self.checks]
        return ("what", "student", "this form", "refused if"), cells


def fact_checks(student: JsonObject, form: JsonObject) -> Iterator[Check]:
    for name, expected in student.items():
        known, seen = _shown(expected), _shown(form[name])
        problem = None if known == seen else f"expected {known}, saw {seen}"
        if problem or expected is not None:
            yield Check(name, known, seen, "it differs", problem)


def prompt_checks(found: Differences) -> Iterator[Check]:
    """Check the prompts of all turns: their text, and their tokens where the text is the same."""
    for name, differences in (("rendered prompts", found.texts), ("tokens of prompts", found.tokens)):
        problem = f"{len(differences)} of {found.number} differ; {differences[0]}" if differences else None
        yield Check(name, str(found.number), f"{found.number - len(differences)} the same", "one differs", problem)


def token_checks(found: NextTokens, max_kl: float, cause: Callable[[], str | None]) -> Iterator[Check]:
    """Check the distributions of next tokens, `max_kl` in nats; `cause` looks for what explains a difference."""
    seen = f"{metric(found.kl)} nats"
    problem = None
    if found.kl > max_kl:
        problem = "; ".join(filter(None, [f"{seen}, expected at most {max_kl:g}", cause()]))
    yield Check("KL a token", f"over {found.num_tokens:,} tokens", seen, f"above {max_kl:g}", problem)
    yield Check("same most probable token", "", percent(found.same_best), "")


def answer_check(same: int, number: int) -> Check:
    return Check("same answers", str(number), f"{same} ({percent(same / number)})", "")


def measured_check(name: str, difference: Difference) -> Check:
    """Check a share of the prompts, which may be lower by chance."""
    is_lower = difference.difference < -MAX_LOSS and difference.p_lower < _SIGNIFICANT
    span = interval(difference.low, difference.high)
    problem = f"{percent(difference.mean)} for {percent(difference.reference)}: {span}" if is_lower else None
    seen = f"{percent(difference.mean)}, difference {span}"
    return Check(name, percent(difference.reference), seen, f"lower by {MAX_LOSS:.0%}, p < {_SIGNIFICANT:g}", problem)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}"
