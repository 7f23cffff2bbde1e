"""Checks before training: whether teacher and student share token ids, and end their turns with the same token."""

from collections.abc import Iterable, Sequence
from typing import Final

from transformers import GenerationConfig, PreTrainedTokenizerBase

from stillhouse.chat.template import stop_token_ids
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


def stop_token_warning(
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    student_generation: GenerationConfig | None,
    teacher_generation: GenerationConfig | None,
    *,
    teacher_name: str,
) -> str | None:
    """A warning for a base student with an instruction-tuned teacher; None where their stop tokens agree.

    A base model ends a text with the end of a document, its instructed sibling a turn with the end of a turn (of Qwen3:
    151643 and 151645), though both have the latter's template. The teacher gives the student's end next to no
    probability and the student has never written the teacher's, so it learns not to end at all.

    Args:
        student: tokenizer of the student.
        teacher: tokenizer of the teacher, with the same vocabulary.
        student_generation: generation config of the student; None where it is not known.
        teacher_generation: generation config of the teacher; None where it is not known.
        teacher_name: names the teacher in the warning.

    Raises:
        TemplateError: a chat template closes a turn with no special token.
    """
    ours, theirs = _stop_ids(student, student_generation), _stop_ids(teacher, teacher_generation)
    turn_ends = stop_token_ids(teacher)
    closing = turn_ends - {teacher.eos_token_id} or turn_ends
    if ours & ((theirs & closing) or theirs):
        return None
    return (
        f"student and teacher {teacher_name!r} end differently: the student was made to stop at "
        f"{_named(student, ours)}, the teacher at {_named(teacher, theirs)}, and the teacher's template closes a turn "
        f"with {_named(teacher, closing)}. A student that never wrote the teacher's token is told not to end at all, "
        "and its trajectories grow until they are cut off. Train it with SFT on the teacher's rollouts first, or begin "
        "with its instructed sibling; if it has been fine-tuned to end like the teacher, nothing is wrong"
    )


def _stop_ids(tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None) -> frozenset[int]:
    """Stop tokens by the tokenizer and the generation config."""
    named = None if generation is None else generation.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return frozenset(token_id for token_id in (tokenizer.eos_token_id, *listed) if token_id is not None)


def _named(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(token_id)} ({token_id})" for token_id in sorted(ids))
