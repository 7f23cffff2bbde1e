"""What is measured of a pair, as the process that measures hands it on. Free of torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from stillhouse.store.atomic import write_atomic

FIGURES_FILE: Final = "pair.json"

Opening = Literal["none", "open", "closed"]
"""What a generation prompt does with a thinking block: nothing, opens it, or opens and closes it."""


@dataclass(frozen=True, slots=True)
class StudentFigures:
    """The student on the prompts, by the settings of on-policy distillation."""

    num_trajectories: int
    """Those with at least one completion."""
    num_tokens: int
    """Sampled, of all trajectories."""
    num_inputs: int
    """Tokens of all trajectories, prompts included."""
    ended_share: float
    """Of completions that end with an end-of-turn token."""
    nll: float
    """Of its sampled tokens, in nats a token: an estimate of its entropy."""
    vocabulary: int
    """Tokens of its tokenizer."""
    opening: Opening
    sampling_s: float
    forward_s: float
    """Of one forward pass over all trajectories."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A teacher's scores of what the student sampled, against the student's own."""

    num_tokens: int
    kl: float
    """Mean of log student - log teacher, in nats a token: an estimate of the reverse KL."""
    worst_share: float
    """Part of the sum of the positive differences that is in the worst twentieth of the tokens."""
    nll: float
    """Mean of -log teacher."""
    top_k: int | None = None
    """Most probable tokens compared at each place; None where the teacher gives none."""
    overlap: float | None = None
    """Share of the student's `top_k` that are among the teacher's."""
    differing: float | None = None
    """Share of the places where their most probable tokens differ."""


@dataclass(frozen=True, slots=True)
class EndScores:
    """How the teacher scores the ends of the student's completions."""

    num_ends: int
    student: float
    """Mean probability of the end token where the student sampled it, by the student."""
    teacher: float
    """The same by the teacher."""


@dataclass(frozen=True, slots=True)
class RenderingFigures:
    """The same answers after the student's rendering of the conversation and after the teacher's own."""

    differs: bool
    """Whether the two renderings of a conversation differ in a token."""
    nats: float = 0.0
    """Mean of log teacher after its own rendering - log teacher after what it reads, over sampled tokens but ends."""


@dataclass(frozen=True, slots=True)
class OneSided:
    """Tokens behind the shared ids, which one model alone has, and their probability where tokens were sampled."""

    num_shared: int
    student: float
    """Mean mass of the student's own, among its most probable tokens."""
    teacher: float
    """The same of the teacher's."""


@dataclass(frozen=True, slots=True)
class TeacherFigures:
    """One teacher on the trajectories of its prompts."""

    name: str
    kind: str
    alignment: Literal["ids", "bytes"]
    reads_own_template: bool = False
    """Whether what it reads is rendered by its own template."""
    refusal: str | None = None
    """Why it cannot score; None if it did, or if none of the prompts is its own. The fields below are then None."""
    stop_warning: str | None = None
    """`stop_token_warning`, where its tokenizer is at hand."""
    opening: Opening | None = None
    """By its own template; None if unknown."""
    agreement: Agreement | None = None
    ends: EndScores | None = None
    """None where no completion ended."""
    rendering: RenderingFigures | None = None
    """None where its template is unknown or is what it reads."""
    one_sided: OneSided | None = None
    """None where both have the same tokens, or that is unknown."""
    template_problem: str | None = None
    """Why its own template is unknown, where that is not plain."""
    scoring_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PairFigures:
    """All that the process measures."""

    student: StudentFigures
    teachers: tuple[TeacherFigures, ...]

    def write(self, folder: Path) -> None:
        write_atomic(folder / FIGURES_FILE, _FIGURES.dump_json(self, indent=1))


_FIGURES: Final = TypeAdapter(PairFigures)


def read_figures(folder: Path) -> PairFigures:
    """What `PairFigures.write` wrote."""
    return _FIGURES.validate_json((folder / FIGURES_FILE).read_bytes())
