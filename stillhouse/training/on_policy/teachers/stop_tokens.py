"""Whether student and teacher end their turns with the same token, said before training begins."""

from collections.abc import Iterable

from transformers import GenerationConfig, PreTrainedTokenizerBase

from stillhouse.chat.template import stop_token_ids


def stop_token_warning(
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    student_generation: GenerationConfig | None,
    teacher_generation: GenerationConfig | None,
    *,
    teacher_name: str,
) -> str | None:
    """What to tell the user where a base student meets an instructed teacher; None where their ends agree.

    A base model ends a text with the end of a document, its instructed sibling a turn with the end of a turn (of Qwen3:
    151643 and 151645), though both have the latter's template. The teacher gives the student's end next to no
    probability and the student has never written the teacher's, so it learns not to end at all.

    Args:
        student: tokenizer of the student.
        teacher: tokenizer of the teacher, with the same vocabulary.
        student_generation: generation config of the student; None where it is not known.
        teacher_generation: generation config of the teacher; None where it is not known.
        teacher_name: tells the teacher in the warning.

    Raises:
        TemplateError: a chat template closes a turn with no special token.
    """
    ours, theirs = _own_ends(student, student_generation), _own_ends(teacher, teacher_generation)
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


def _own_ends(tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None) -> frozenset[int]:
    """What a model was made to end with, by its tokenizer and its generation config."""
    named = None if generation is None else generation.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return frozenset(token_id for token_id in (tokenizer.eos_token_id, *listed) if token_id is not None)


def _named(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(token_id)} ({token_id})" for token_id in sorted(ids))
