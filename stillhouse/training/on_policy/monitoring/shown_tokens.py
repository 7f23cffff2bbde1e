"""Tokens of one trajectory as its page shows them: grouped into segments, each token with colour and figures."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.training.on_policy.scored import ScoredSample

LEVELS: Final = 5
"""Colours of either sign; the advantage grows with the square of the level, since most advantages are small."""
_SCALE_SHARE: Final = 0.98
_HEAD, _TAIL = 2000, 1000
"""Tokens shown at the start and the end of a longer trajectory."""
_REPLACEMENT: Final = "\ufffd"
_MAX_UTF8_BYTES: Final = 4


class Token(NamedTuple):
    """One token on the page."""

    text: str
    """Empty for all but the last token of a character that takes several."""
    level: int
    """Colour, from -LEVELS to LEVELS."""
    tooltip: str

    @property
    def visible(self) -> str:
        """The text with line breaks and empty tokens made visible."""
        return self.text.replace("\n", "\u23ce\n") or "\u25e6"


class Segment(NamedTuple):
    """A run of tokens that were all sampled or all read, or the gap for those left out."""

    kind: Literal["sampled", "read", "left out"]
    tokens: Sequence[Token] = ()
    num_omitted: int = 0


def full_scale(advantages: Iterable[float]) -> float:
    """Absolute advantage at which colours saturate: its 98th percentile, so that outliers do not drown the rest.

    Args:
        advantages: all sampled tokens of a page.
    """
    sizes = sorted(map(abs, advantages))
    return (sizes[int(_SCALE_SHARE * (len(sizes) - 1))] or sizes[-1] or 1.0) if sizes else 1.0


def level_value(level: int, scale: float) -> float:
    """Advantage that a level stands for."""
    return math.copysign(scale * (level / LEVELS) ** 2, level)


def segments(
    sample: ScoredSample, advantages: Sequence[float], scale: float, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Segment]:
    """Segments of the tokens after the prompt; the middle of a very long trajectory is omitted.

    Args:
        sample: has at least one sampled token.
        advantages: one for each token of `sample`.
        scale: see `full_scale`.
        tokenizer: the student's.
    """
    start, end = sample.loss_mask.index(True), len(sample.token_ids)
    num_omitted = end - start - _HEAD - _TAIL
    parts = [range(start, end)]
    if num_omitted > 0:
        parts = [range(start, start + _HEAD), range(end - _TAIL, end)]
    for number, positions in enumerate(parts):
        if number > 0:
            yield Segment("left out", num_omitted=num_omitted)
        tokens = _tokens(sample, advantages, positions, scale, tokenizer)
        for is_sampled, run in groupby(zip(positions, tokens, strict=True), key=lambda pair: sample.loss_mask[pair[0]]):
            yield Segment("sampled" if is_sampled else "read", [token for _, token in run])


def _tokens(
    sample: ScoredSample,
    advantages: Sequence[float],
    positions: range,
    scale: float,
    tokenizer: PreTrainedTokenizerBase,
) -> list[Token]:
    kls = sample.sampled_kl
    texts = token_texts(tokenizer, sample.token_ids[positions.start : positions.stop])
    tokens = []
    for position, text in zip(positions, texts, strict=True):
        advantage = advantages[position]
        shown = repr(text) if text else "part of a character"
        tooltip = f"{shown}  id {sample.token_ids[position]}  advantage {advantage:+z.3f}"
        if sample.sampling_logprobs is not None:
            tooltip += f"  student {sample.sampling_logprobs[position]:z.3f}"
        if sample.teacher_logprobs is not None and kls is not None:
            tooltip += (
                f"  {sample.teacher or 'teacher'} {sample.teacher_logprobs[position]:z.3f}  KL {kls[position]:+z.3f}"
            )
        size = round(LEVELS * min(1.0, math.sqrt(abs(advantage) / scale)))
        tokens.append(Token(text, int(math.copysign(size, advantage)), tooltip))
    return tokens


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Text of each token; joined they are the text of the sequence, special tokens included.

    A character of several tokens belongs to the last of them; the others are empty. Each token is decoded together
    with the one before it, since many tokenizers write a space between two tokens but none before the first.
    """
    texts: list[str] = []
    context = done = 0
    for end in range(1, len(token_ids) + 1):
        prefix = tokenizer.decode(token_ids[context:done])
        text = tokenizer.decode(token_ids[context:end])
        # Four bytes complete any character: a longer incomplete sequence is invalid and shown as such.
        if text.endswith(_REPLACEMENT) and end - done < _MAX_UTF8_BYTES and end < len(token_ids):
            texts.append("")
            continue
        texts.append(text[len(prefix) :])
        context, done = done, end
    return texts
