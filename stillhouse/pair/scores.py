"""What the teacher's scores of the student's tokens say: one vocabulary or another, and how far both agree."""

import math
from typing import Final

from stillhouse.pair.finding import PairFinding
from stillhouse.training.pair.figures import Agreement, StudentFigures, TeacherFigures

_ALIEN_DIFFERING: Final = 0.95
"""Share of places with another best token above which a teacher reads other tokens than the student wrote."""
_ALIEN_NATS: Final = 0.6
"""Part of the logarithm of the vocabulary that a guess costs; healthy pairs stay below a half of it."""


def vocabulary_finding(student: StudentFigures, teacher: TeacherFigures) -> PairFinding:
    """Whether token ids, or bytes, mean the same to both."""
    name = f"{teacher.name}: tokens"
    if teacher.refusal is not None:
        return PairFinding(name, "no", teacher.refusal)
    if teacher.agreement is None:
        return PairFinding(name, "unknown", "it loads; none of the prompts measured on is routed to it")
    form = "aligned by bytes" if teacher.alignment == "bytes" else _shared(student, teacher)
    found = teacher.agreement
    guess = math.log(student.vocabulary)
    if not _is_alien(found, guess):
        return PairFinding(name, "fine", form)
    if student.nll >= _ALIEN_NATS * guess:
        return PairFinding(
            name,
            "change",
            f"the student's own tokens cost it {student.nll:.2f} nats each and the teacher {found.nll:.2f}, where a "
            f"guess costs {guess:.2f}: it does not write language yet. Train it with SFT first",
        )
    differing = (
        "" if found.differing is None else f", and the best tokens differ at {found.differing:.0%} of the places"
    )
    return PairFinding(
        name,
        "no",
        f"the student's tokens cost the teacher {found.nll:.2f} nats each, where a guess costs {guess:.2f}{differing}: "
        "the ids mean something else to it, although the vocabularies call themselves the same. Check that its weights "
        "and tokenizer belong together, or take another teacher",
    )


def _shared(student: StudentFigures, teacher: TeacherFigures) -> str:
    one_sided = teacher.one_sided
    if one_sided is None:
        return f"{student.vocabulary} ids shared"
    return (
        f"the first {one_sided.num_shared} ids are shared; on added tokens that only one of them has lie "
        f"{one_sided.student:.2%} of the student's probability and {one_sided.teacher:.2%} of the teacher's. Training "
        "stops where the student samples one"
    )


def agreement_finding(teacher: TeacherFigures) -> PairFinding | None:
    """How far both agree on what the student sampled; None without scores."""
    found = teacher.agreement
    if found is None:
        return None
    detail = (
        f"reverse KL {found.kl:.3f} nats a token, {found.worst_share:.0%} of it in the worst twentieth of "
        f"{found.num_tokens} tokens"
    )
    if found.overlap is not None:
        detail += (
            f"; best tokens differ at {found.differing:.1%} of the places, and {found.overlap:.0%} of the "
            f"{found.top_k} best are shared"
        )
    return PairFinding(f"{teacher.name}: agreement", "fine", detail)


def _is_alien(found: Agreement, guess: float) -> bool:
    if found.nll >= guess:
        return True
    return found.differing is not None and found.differing >= _ALIEN_DIFFERING and found.nll >= _ALIEN_NATS * guess
