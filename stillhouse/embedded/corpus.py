"""Training rows of the embedded models: shop conversations as token ids and loss masks."""

import itertools
import random
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerFast

from stillhouse.embedded.shop import (
    CALCULATOR_SCHEMA,
    Message,
    conversation,
    draw_stories,
    scrambled_operators,
    slipped_operators,
)

CorpusKind = Literal["correct", "scrambled"]
# The teacher must also judge conversations that a student has led astray, so some of its own contain a wrong call;
# that call is not trained on, what follows it is.
SLIP_SHARE: Final = 0.25
_ENCODE_AT_ONCE: Final = 512


class Row(NamedTuple):
    """Token ids of one conversation and, of the same length, 1 where the token is trained on."""

    ids: list[int]
    loss_mask: list[int]


class _Draft(NamedTuple):
    messages: list[Message]
    is_trained: list[bool]  # one an assistant turn


def draw_rows(tokenizer: PreTrainedTokenizerFast, kind: CorpusKind, num_rows: int, rng: random.Random) -> list[Row]:
    """`num_rows` rows of stories that are not reserved.

    Args:
        tokenizer: Carries the chat template, whose generation spans make the mask.
        kind: `correct`, or `scrambled` where the operators of half the phrases are random.
        num_rows: Size of the corpus.
        rng: Decides every story.
    """
    drafts = list(itertools.islice(_draw_drafts(kind, rng), num_rows))
    rows: list[Row] = []
    for first in range(0, num_rows, _ENCODE_AT_ONCE):
        rows.extend(_encode(tokenizer, drafts[first : first + _ENCODE_AT_ONCE]))
    return rows


def _draw_drafts(kind: CorpusKind, rng: random.Random) -> Iterator[_Draft]:
    for story in draw_stories(rng, reserved=False):
        num_turns = len(story.events) + 1
        if kind == "scrambled":
            yield _Draft(conversation(story, scrambled_operators(story, rng)), [True] * num_turns)
        elif rng.random() < SLIP_SHARE:
            written = slipped_operators(story, rng)
            right = [one == other for one, other in zip(written, story.operators, strict=True)]
            yield _Draft(conversation(story, written), [*right, True])
        else:
            yield _Draft(conversation(story), [True] * num_turns)


def _encode(tokenizer: PreTrainedTokenizerFast, drafts: list[_Draft]) -> Iterator[Row]:
    encoded = tokenizer.apply_chat_template(
        [draft.messages for draft in drafts],
        tools=[CALCULATOR_SCHEMA],
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    for ids, spans, draft in zip(encoded["input_ids"], encoded["assistant_masks"], drafts, strict=True):
        yield Row(ids, _keep_turns(spans, draft.is_trained))


def _keep_turns(spans: list[int], is_trained: list[bool]) -> list[int]:
    mask: list[int] = []
    turn = 0
    for is_assistant, run in itertools.groupby(spans):
        length = len(list(run))
        mask.extend([int(bool(is_assistant) and is_trained[turn])] * length)
        turn += is_assistant
    return mask
