"""How student and teacher read and write conversations: rendering, ends of turns, reasoning."""

from typing import Final

from stillhouse.pair.finding import PairFinding
from stillhouse.training.pair.figures import Opening, StudentFigures, TeacherFigures

_NATS: Final = 0.05
"""A token, from which another rendering matters; it was 0.287 where a training failed (tinker-cookbook#796)."""
_ENDED_SHARE: Final = 0.5
_END_RATIO: Final = 0.1
"""Of the teacher's probability of the student's ends to the student's own."""
_REASONING_SHARE: Final = 0.5
"""Difference between the shares of answers with reasoning."""
_OPENINGS: Final[dict[Opening, str]] = {
    "none": "opens no thinking block",
    "open": "opens a thinking block",
    "closed": "closes an empty thinking block",
}


def rendering_finding(teacher: TeacherFigures) -> PairFinding | None:
    """What the student's rendering costs the teacher; None where the teacher has no other template, or no scores."""
    name = f"{teacher.name}: rendering"
    if teacher.agreement is None or teacher.kind == "base":
        return None
    if teacher.reads_own_template:
        return PairFinding(name, "fine", "it reads its own template's rendering")
    found = teacher.rendering
    if found is None:
        problem = teacher.template_problem or "its tokenizer is not at hand: give the folder or hub name as `model`"
        return PairFinding(name, "unknown", f"its own rendering is not known: {problem}")
    if not found.differs:
        return PairFinding(name, "fine", "both templates render alike")
    seen = f"{found.nats:+.3f} nats a token by its own template against the student's rendering"
    if found.nats > _NATS:
        remedy = "set `template: own` for this teacher in on_policy.teachers, or give the student its chat template"
        return PairFinding(name, "change", f"{seen}: it reads a form that it does not know; {remedy}")
    if found.nats < -_NATS:
        return PairFinding(
            name,
            "change",
            f"{seen}: the two forms differ, and the student's answers suit its own. If the teacher answers well, its "
            "template is the right one: set `template: own` for it in on_policy.teachers. If it does not, its "
            "chat_template is not the one it was trained with",
        )
    return PairFinding(name, "fine", f"{seen}: no matter")


def student_ends_finding(student: StudentFigures, *, comes_after_sft: bool) -> PairFinding:
    """Whether the student's completions end before they are cut off."""
    seen = f"{student.ended_share:.0%} of its completions end with an end-of-turn token"
    if student.ended_share >= _ENDED_SHARE:
        return PairFinding("student: ends", "fine", seen)
    if comes_after_sft:
        return PairFinding("student: ends", "fine", f"{seen}; SFT, which comes first, teaches it to")
    return PairFinding(
        "student: ends",
        "change",
        f"{seen}: a cut one does not show how to end. Raise on_policy.max_tokens if its answers are longer, or train "
        "it with SFT first",
    )


def ends_finding(teacher: TeacherFigures, *, comes_after_sft: bool) -> PairFinding | None:
    """Whether both end their turns alike; None without scores."""
    name = f"{teacher.name}: ends"
    if teacher.agreement is None:
        return None
    found = teacher.ends
    # What the warning says first: which tokens they stop at.
    tokens = None if teacher.stop_warning is None else teacher.stop_warning.partition(". ")[0]
    seen = "no completion of the student ended"
    if found is not None:
        seen = (
            f"the student's {found.num_ends} end tokens have a mean probability of {found.teacher:.2g} by the teacher, "
            f"{found.student:.2g} by the student"
        )
    if tokens is not None and comes_after_sft:
        return PairFinding(name, "fine", f"{tokens}, which SFT, that comes first, mends; {seen}")
    if found is None and tokens is None:
        return PairFinding(name, "unknown", seen)
    if found is None or found.teacher < _END_RATIO * found.student:
        return PairFinding(
            name,
            "change",
            f"{seen}: {tokens or 'the teacher ends its turns otherwise'}, and the student would learn not to end. "
            "Start from the student's instruct variant, train with SFT on the teacher's rollouts first, or take "
            "another teacher",
        )
    if tokens is not None:
        seen = f"{tokens}; both end alike ({seen}), and the files of the trained student name all of its ends"
    return PairFinding(name, "fine", seen)


def opening_finding(student: StudentFigures, teacher: TeacherFigures) -> PairFinding | None:
    """Whether both prompts treat thinking alike; None where the teacher's is unknown."""
    if teacher.opening is None:
        return None
    name = f"{teacher.name}: thinking"
    if teacher.opening == student.opening:
        return PairFinding(name, "fine", f"the prompt of both {_OPENINGS[student.opening]}")
    return PairFinding(
        name,
        "change",
        f"the student's prompt {_OPENINGS[student.opening]}, the teacher's {_OPENINGS[teacher.opening]}: one reasons "
        "where the other answers. Set student.chat_template_kwargs, such as `enable_thinking: false`, so that both do "
        "the same, or take a pair of one kind",
    )


def reasoning_finding(name: str, student: float, teacher: float, *, comes_after_sft: bool) -> PairFinding:
    """Whether both reason before they answer, by the shares of answers with reasoning."""
    seen = f"{teacher:.0%} of the teacher's answers have reasoning, {student:.0%} of the student's"
    if abs(teacher - student) < _REASONING_SHARE:
        return PairFinding(name, "fine", seen)
    if comes_after_sft and teacher > student:
        return PairFinding(name, "fine", f"{seen}; SFT, which comes first, teaches it to")
    return PairFinding(
        name,
        "change",
        f"{seen}. Turn thinking on or off for both (student.chat_template_kwargs), or train with SFT on the teacher's "
        "rollouts first",
    )
