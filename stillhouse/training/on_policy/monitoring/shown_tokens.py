"""The tokens of one trajectory as a page shows them: in runs, each with its colour and its figures."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.training.on_policy.monitoring.token_texts import token_texts
from stillhouse.training.on_policy.scored import ScoredSample

LEVELS: Final = 5
"""Colours of either sign. Their squares are proportional to the advantage, since most advantages are small."""
_SCALE_SHARE: Final = 0.98
_HEAD, _TAIL = 2000, 1000
"""Tokens shown of a longer trajectory, from its beginning and its end."""


class Token(NamedTuple):
    """One token."""

    text: str
    """Empty for all but the last token of a character that takes several."""
    level: int
    """Its colour, from -LEVELS to LEVELS."""
    note: str
    """What is said of it when it is pointed at."""

    @property
    def visible(self) -> str:
        """The text so that there is something to see and to point at."""
        return self.text.replace("\n", "\u23ce\n") or "\u25e6"


class Segment(NamedTuple):
    """Tokens that were all sampled, or all read, or are left out."""

    kind: Literal["sampled", "read", "left out"]
    tokens: Sequence[Token] = ()
    num_left_out: int = 0


def full_scale(advantages: Iterable[float]) -> float:
    """The absolute advantage at which colours are fullest: few are above it, and none of them drowns the rest.

    Args:
        advantages: of all sampled tokens of a page.
    """
    sizes = sorted(map(abs, advantages))
    return (sizes[int(_SCALE_SHARE * (len(sizes) - 1))] or sizes[-1] or 1.0) if sizes else 1.0


def level_value(level: int, scale: float) -> float:
    """The advantage that a colour stands for."""
    return math.copysign(scale * (level / LEVELS) ** 2, level)


def segments(
    sample: ScoredSample, advantages: Sequence[float], scale: float, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Segment]:
    """What follows the prompt; of very much of it the middle is left out.

    Args:
        sample: with a sampled token.
        advantages: aligned with its tokens.
        scale: see `full_scale`.
        tokenizer: the student's.
    """
    start, end = sample.loss_mask.index(True), len(sample.token_ids)
    num_left_out = end - start - _HEAD - _TAIL
    parts = [range(start, end)]
    if num_left_out > 0:
        parts = [range(start, start + _HEAD), range(end - _TAIL, end)]
    for number, places in enumerate(parts):
        if number:
            yield Segment("left out", num_left_out=num_left_out)
        tokens = _tokens(sample, advantages, places, scale, tokenizer)
        for is_sampled, run in groupby(zip(places, tokens, strict=True), key=lambda one: sample.loss_mask[one[0]]):
            yield Segment("sampled" if is_sampled else "read", [token for _, token in run])


def _tokens(
    sample: ScoredSample, advantages: Sequence[float], places: range, scale: float, tokenizer: PreTrainedTokenizerBase
) -> list[Token]:
    kls = sample.sampled_kl
    texts = token_texts(tokenizer, sample.token_ids[places.start : places.stop])
    tokens = []
    for place, text in zip(places, texts, strict=True):
        advantage = advantages[place]
        written = repr(text) if text else "part of a character"
        note = f"{written}  id {sample.token_ids[place]}  advantage {advantage:+z.3f}"
        if sample.sampling_logprobs is not None:
            note += f"  student {sample.sampling_logprobs[place]:z.3f}"
        if sample.teacher_logprobs is not None and kls is not None:
            note += f"  {sample.teacher or 'teacher'} {sample.teacher_logprobs[place]:z.3f}  KL {kls[place]:+z.3f}"
        size = round(LEVELS * min(1.0, math.sqrt(abs(advantage) / scale)))
        tokens.append(Token(text, int(math.copysign(size, advantage)), note))
    return tokens
