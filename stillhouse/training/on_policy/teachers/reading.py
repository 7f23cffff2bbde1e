"""How a teacher of the config reads what the student sampled: its tokenizer, its views, and whose tokens it scores."""

from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyConfig, OnPolicyTeacher
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.ends import EndExchange
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.own_template import OwnTemplate
from stillhouse.training.on_policy.teachers.teacher import Alignment
from stillhouse.training.on_policy.teachers.views import OtherVocabulary, SameVocabulary, ViewBuilder
from stillhouse.training.on_policy.teachers.vocabulary import check_vocabularies


class Reading(NamedTuple):
    """A teacher's tokenizer and what follows from it."""

    tokenizer: PreTrainedTokenizerBase | None
    """The teacher's; None where it is neither needed nor on this machine."""
    views: ViewBuilder
    alignment: Alignment | None = None
    """From the teacher's tokens to the student's; None where they are the same."""


def reading_of(settings: OnPolicyTeacher, student: PreTrainedTokenizerBase, config: OnPolicyConfig) -> Reading:
    """That of the teacher of `settings`.

    Args:
        settings: the teacher.
        student: tokenizer of the student.
        config: names the most turns of a trajectory.

    Raises:
        ConfigError: the teacher's tokenizer cannot be loaded, or its hint is no template.
        TrainingError: it does not share the student's vocabulary.
        TemplateError: its chat template ends a turn with no special token.
    """
    hint = None if settings.hint is None else Hint(settings.hint, settings.name)
    tokenizer = _tokenizer(settings)
    if settings.alignment == "bytes" and tokenizer is not None:
        ends = stop_token_ids(student)
        views = OtherVocabulary(student, tokenizer, ends, hint)
        return Reading(tokenizer, views, ByteAlignment.between(student, tokenizer, ends))
    if tokenizer is not None:
        check_vocabularies(str(settings.model), tokenizer, student)
    if settings.template == "own" and tokenizer is not None:
        exchange = EndExchange.between(student, tokenizer)
        max_turns = 1 if config.agentic == "off" else config.max_turns
        own = OwnTemplate(settings.name, student, tokenizer, exchange, max_turns, hint)
        return Reading(tokenizer, own, exchange if exchange.changes else None)
    return Reading(tokenizer, SameVocabulary(student, hint))


def _tokenizer(settings: OnPolicyTeacher) -> PreTrainedTokenizerBase | None:
    """The teacher's tokenizer if it is needed or can be read locally."""
    if settings.model is None:
        return None
    if settings.kind != "local" and not settings.reads_own_template and not _is_local(settings.model):
        return None
    return load_tokenizer(settings.model, settings.chat_template_kwargs)


def _is_local(ref: str) -> bool:
    """Whether the tokenizer of a served model can be read without a download."""
    return ref.startswith("embedded:") or Path(ref).expanduser().is_dir()
