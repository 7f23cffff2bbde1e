"""Whether teacher and student mean the same by a token id, checked before anything is sampled."""

from collections.abc import Sequence
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.errors import TrainingError

_SHOWN_TOKENS: Final = 5
_REMEDY: Final = (
    "On-policy distillation compares probabilities of the same token ids. Choose a teacher of the student's family, "
    "set `alignment` to `bytes` for this one, or use SFT, which needs text only"
)


def check_vocabularies(teacher_ref: str, teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> None:
    """Every token has the same id for teacher and student; how many rows their embeddings have does not matter.

    Raises:
        TrainingError: some differ; it shows examples.
    """
    teacher_ids, student_ids = teacher.get_vocab(), student.get_vocab()
    differing = sorted(
        token for token in teacher_ids.keys() | student_ids.keys() if teacher_ids.get(token) != student_ids.get(token)
    )
    if differing:
        shown = ", ".join(
            f"{token!r} is {student_ids.get(token)} for the student and {teacher_ids.get(token)} for the teacher"
            for token in differing[:_SHOWN_TOKENS]
        )
        raise TrainingError(
            f"teacher {teacher_ref!r} does not share the student's vocabulary: {len(differing)} tokens differ "
            f"({shown}). {_REMEDY}"
        )


def spelling_sample(student: PreTrainedTokenizerBase, count: int) -> list[int]:
    """Up to `count` ids from all over the vocabulary, to see how a server spells them."""
    ids = sorted(student.get_vocab().values())
    return ids[:: max(1, len(ids) // count)][:count]


def check_spellings(
    teacher: str, ids: Sequence[int], spellings: Sequence[str | None], student: PreTrainedTokenizerBase
) -> None:
    """A server writes tokens as the student does; for servers whose tokenizer is not at hand.

    Compared are tokens of plain characters, without the spaces around them, which not all servers write.

    Raises:
        TrainingError: some differ; it shows examples.
    """
    differing = []
    for token_id, seen in zip(ids, spellings, strict=True):
        expected = student.decode([token_id])
        if seen and expected.strip().isascii() and seen.isascii() and seen.strip() != expected.strip():
            differing.append(f"{token_id} is {expected!r} for the student and {seen!r} for the teacher")
    if differing:
        raise TrainingError(
            f"teacher {teacher!r} does not share the student's vocabulary: of {len(ids)} tokens tried {len(differing)} "
            f"differ ({', '.join(differing[:_SHOWN_TOKENS])}). {_REMEDY}"
        )
