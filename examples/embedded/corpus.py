"""Training rows of the embedded models: shop conversations as token ids and loss masks."""

import itertools
import random
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerFast

from examples.embedded.shop import (
    CALCULATOR_SCHEMA,
    Message,
    conversation,
    draw_stories,
    scrambled_operators,
    slipped_operators,
)

CorpusKind = Literal["correct", "scrambled"]
# The teacher must also judge conversations in which a student went wrong, so some of its rows contain a wrong call. It
# is not trained on; what follows it is.
SLIP_SHARE: Final = 0.25
_BATCH_SIZE: Final = 512


class Row(NamedTuple):
    """Token ids of one conversation and, of the same length, 1 where the token is trained on."""

    ids: list[int]
    loss_mask: list[int]


_Draft = tuple[list[Message], list[bool]]
"""A conversation, and whether each of its assistant turns is trained on."""


def draw_rows(tokenizer: PreTrainedTokenizerFast, kind: CorpusKind, num_rows: int, rng: random.Random) -> list[Row]:
    """Return `num_rows` rows of stories that are not reserved, with masks from the template's generation spans.

    In a `scrambled` corpus the operators of half the phrases are random.
    """
    drafts = itertools.islice(_draw_drafts(kind, rng), num_rows)
    rows: list[Row] = []
    while batch := list(itertools.islice(drafts, _BATCH_SIZE)):
        rows.extend(_encode(tokenizer, batch))
    return rows


def _draw_drafts(kind: CorpusKind, rng: random.Random) -> Iterator[_Draft]:
    for story in draw_stories(rng, reserved=False):
        num_turns = len(story.events) + 1
        if kind == "scrambled":
            yield conversation(story, scrambled_operators(story, rng)), [True] * num_turns
        elif rng.random() < SLIP_SHARE:
            operators = slipped_operators(story, rng)
            is_right = [ours == right for ours, right in zip(operators, story.operators, strict=True)]
            yield conversation(story, operators), [*is_right, True]
        else:
            yield conversation(story), [True] * num_turns


def _encode(tokenizer: PreTrainedTokenizerFast, drafts: list[_Draft]) -> Iterator[Row]:
    encoded = tokenizer.apply_chat_template(
        [messages for messages, _ in drafts],
        tools=[CALCULATOR_SCHEMA],
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    for ids, spans, (_, trained) in zip(encoded["input_ids"], encoded["assistant_masks"], drafts, strict=True):
        mask: list[int] = []
        is_trained = iter(trained)
        for is_assistant, run in itertools.groupby(spans):
            mask.extend([int(bool(is_assistant) and next(is_trained))] * len(list(run)))
        yield Row(ids, mask)
