"""How a teacher of the config reads what the student sampled: its tokenizer, its views, and whose tokens it scores."""

from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyConfig, OnPolicyTeacher
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.own_template import OwnTemplate
from stillhouse.training.on_policy.teachers.shared_ids import EndExchange, SharedIds
from stillhouse.training.on_policy.teachers.teacher import Alignment
from stillhouse.training.on_policy.teachers.views import OtherVocabulary, SameVocabulary, ViewBuilder
from stillhouse.training.on_policy.teachers.vocabulary import num_shared_ids


class Reading(NamedTuple):
    """A teacher's tokenizer and what follows from it."""

    tokenizer: PreTrainedTokenizerBase | None
    """The teacher's; None where it is neither needed nor on this machine."""
    views: ViewBuilder
    alignment: Alignment | None = None
    """From the teacher's tokens to the student's; None where they are the same."""
    exchange: EndExchange | None = None
    """Of end-of-turn tokens; None where none are exchanged."""
    num_shared: int | None = None
    """Ids below it are the same tokens for both; None where all are."""


def reading_of(settings: OnPolicyTeacher, student: PreTrainedTokenizerBase, config: OnPolicyConfig) -> Reading:
    """Return how the teacher of `settings` reads what a student with this tokenizer samples.

    Raises:
        ConfigError: the teacher's tokenizer cannot be loaded, or its hint is no template.
        TrainingError: it does not share the student's vocabulary.
        TemplateError: its chat template ends a turn with no special token.
    """
    hint = None if settings.hint is None else Hint(settings.hint, settings.name)
    tokenizer = _tokenizer(settings)
    if settings.alignment == "bytes" and tokenizer is not None:
        stops = stop_token_ids(student)
        other = OtherVocabulary(student, tokenizer, stops, hint)
        return Reading(tokenizer, other, ByteAlignment.between(student, tokenizer, stops))
    num_shared = None if tokenizer is None else num_shared_ids(str(settings.model), tokenizer, student)
    views: ViewBuilder = SameVocabulary(student, hint)
    exchange = None
    if settings.template == "own" and tokenizer is not None:
        ends = EndExchange.between(student, tokenizer)
        max_turns = config.max_turns
        views = OwnTemplate(settings.name, student, tokenizer, ends, max_turns, hint)
        exchange = ends if ends.changes else None
    alignment: Alignment | None = exchange
    if num_shared is not None:
        reads_prompt = settings.template != "own"
        alignment = SharedIds(settings.name, num_shared, student, exchange, reads_prompt)
    return Reading(tokenizer, views, alignment, exchange, num_shared)


def _tokenizer(settings: OnPolicyTeacher) -> PreTrainedTokenizerBase | None:
    """Return the teacher's tokenizer if it is needed or can be read without a download."""
    ref = settings.model
    if ref is None:
        return None
    is_here = ref.startswith("embedded:") or Path(ref).expanduser().is_dir()
    if not (settings.is_here or settings.reads_own_template or is_here):
        return None
    return load_tokenizer(ref, settings.chat_template_kwargs)
