"""Checks before training: whether teacher and student share token ids, and end their turns with the same token."""

from collections.abc import Iterable, Sequence
from typing import Final

from transformers import GenerationConfig, PreTrainedTokenizerBase

from stillhouse.chat.next_turn import end_ids, stop_token_ids
from stillhouse.errors import TrainingError
from stillhouse.training.on_policy.teachers.shared_ids import EndExchange

_SHOWN_TOKENS: Final = 5
_REMEDY: Final = (
    "On-policy distillation compares probabilities of the same token ids. Choose a teacher of the student's family, "
    "set `alignment` to `bytes` for this one, or use SFT, which needs text only"
)


def num_shared_ids(teacher_ref: str, teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> int | None:
    """Return the number of ids, from 0, that are the same token for both; None where all tokens are the same.

    The numbers of embedding rows may differ, and so may added tokens behind the shared ids: the special tokens of
    another release (`<think>` of Qwen3, which Qwen2.5 lacks) or of a finetuning.

    Raises:
        TrainingError: other tokens differ, or the student ends its turns with one that the teacher lacks; the message
            shows examples.
    """
    teacher_ids, student_ids = teacher.get_vocab(), student.get_vocab()
    differing = sorted(
        token for token in teacher_ids.keys() | student_ids.keys() if teacher_ids.get(token) != student_ids.get(token)
    )
    if not differing:
        return None
    num_shared = min(ids[token] for ids in (teacher_ids, student_ids) for token in differing if token in ids)
    sides = ((teacher, teacher_ids), (student, student_ids))
    are_added = all(
        token_id in tokenizer.added_tokens_decoder
        for tokenizer, ids in sides
        for token_id in ids.values()
        if token_id >= num_shared
    )
    if are_added and max(stop_token_ids(student)) < num_shared:
        return num_shared
    shown = ", ".join(
        f"{token!r} is {student_ids.get(token)} for the student and {teacher_ids.get(token)} for the teacher"
        for token in differing[:_SHOWN_TOKENS]
    )
    raise TrainingError(
        f"teacher {teacher_ref!r} does not share the student's vocabulary: {len(differing)} tokens differ ({shown}). "
        f"{_REMEDY}",
        code="vocabulary",
    )


def spelling_sample(student: PreTrainedTokenizerBase, count: int) -> list[int]:
    """Return up to `count` ids spread over the vocabulary, without added tokens, which a teacher may lack."""
    ids = sorted(set(student.get_vocab().values()) - student.added_tokens_decoder.keys())
    return ids[:: max(1, len(ids) // count)][:count]


def check_spellings(
    teacher: str, ids: Sequence[int], spellings: Sequence[str | None], student: PreTrainedTokenizerBase
) -> None:
    """Raise TrainingError, with examples, if a server's tokens do not have the student's texts.

    Only ASCII tokens are compared, without surrounding spaces, which not all servers return.
    """
    differing = []
    for token_id, spelling in zip(ids, spellings, strict=True):
        expected = student.decode([token_id])
        if spelling and expected.strip().isascii() and spelling.isascii() and spelling.strip() != expected.strip():
            differing.append(f"{token_id} is {expected!r} for the student and {spelling!r} for the teacher")
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
    exchange: EndExchange | None = None,
) -> str | None:
    """Return a warning for a base student with an instruction-tuned teacher; None if their stop tokens agree.

    A base model ends with the end-of-document token, its instruct variant with the end-of-turn token (Qwen3: 151643 and
    151645), though both have the same template. The teacher gives the student's end token almost no probability and the
    student never samples the teacher's, so it learns not to end. Raises as `turn_ends`.
    """
    ours, theirs = _stop_ids(student, student_generation), _stop_ids(teacher, teacher_generation)
    turn_ends = stop_token_ids(teacher)
    closing = turn_ends - {teacher.eos_token_id} or turn_ends
    read = ours if exchange is None else frozenset(exchange.ids(ours))
    if read & ((theirs & closing) or theirs):
        return None
    return (
        f"student and teacher {teacher_name!r} have different stop tokens: the student stops at "
        f"{_named(student, ours)}, the teacher at {_named(teacher, theirs)}, and the teacher's template closes a turn "
        f"with {_named(teacher, closing)}. A student that never samples the teacher's token learns not to stop, "
        "and its trajectories grow until they are cut off. Train it with SFT on the teacher's rollouts first, or start "
        "from its instruct variant; if it has been fine-tuned to end like the teacher, ignore this"
    )


def _stop_ids(tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None) -> frozenset[int]:
    return frozenset({tokenizer.eos_token_id, *end_ids(generation)})


def _named(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(token_id)} ({token_id})" for token_id in sorted(ids))
