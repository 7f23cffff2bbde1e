"""Tokens of one trajectory as `stillhouse view` shows them: each sampled one with its figures."""

from collections.abc import Sequence
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.types import JsonObject

_REPLACEMENT: Final = "\ufffd"
_MAX_UTF8_BYTES: Final = 4


def shown_tokens(
    sample: ScoredSample, advantages: Sequence[float], tokenizer: PreTrainedTokenizerBase
) -> list[JsonObject]:
    """Return the tokens after the prompt: the text of each and, of the sampled ones, id, advantage and nats."""
    start = sample.loss_mask.index(True)
    kls = sample.sampled_kl
    tokens: list[JsonObject] = []
    for position, text in enumerate(token_texts(tokenizer, sample.token_ids[start:]), start=start):
        token: JsonObject = {"text": text}
        if sample.loss_mask[position]:
            token |= {"id": sample.token_ids[position], "advantage": advantages[position]}
            if sample.sampling_logprobs is not None:
                token["student"] = sample.sampling_logprobs[position]
            if sample.teacher_logprobs is not None and kls is not None:
                token |= {"teacher": sample.teacher_logprobs[position], "kl": kls[position]}
        tokens.append(token)
    return tokens


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token; joined they are the text of the sequence, special tokens included.

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
