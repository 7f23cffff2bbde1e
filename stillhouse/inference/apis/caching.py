"""What of a prompt its seller keeps in a cache; of OpenAI, where it charges for that.

From gpt-5.6 on what is written to the cache costs a quarter more than a plain token, and by default all of a prompt is
written (https://platform.openai.com/docs/guides/prompt-caching). A prompt that is sent once is not worth it beyond the
system prompt, which all rollouts share.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from stillhouse.chat.content import text_of
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.sampling import Sampling
from stillhouse.sellers import AZURE, DEEPSEEK, OPENAI
from stillhouse.types import JsonObject

_CHARACTERS: Final = 3 * 1024
"""Fewer hold no 1,024 tokens, below which nothing is cached."""
MARKED_CHARACTERS: Final = 2048
"""Fewer are not worth a mark at Anthropic: of no model less than 512 tokens are cached."""
_WRITES_ARE_CHARGED: Final = (5, 6)
"""First version of gpt."""
_EXPLICIT: Final = {"mode": "explicit"}


def is_read_again(endpoint: Endpoint, num_characters: int) -> bool:
    """Return whether a prompt of so many characters is read from the seller's cache once it was answered."""
    if endpoint.speaks_messages:
        return num_characters >= MARKED_CHARACTERS
    is_kept = any(seller.is_at(endpoint.base_url) for seller in (OPENAI, AZURE, DEEPSEEK))
    return is_kept and num_characters >= _CHARACTERS


def planned_cache(
    endpoint: Endpoint, messages: Sequence[Any], sampling: Sampling, text_kind: str
) -> tuple[list[Any], JsonObject]:
    """Return the messages, or items, of a request and the keys by which only its system prompt is kept in the cache.

    They are returned as they are, with no keys, where they are sent again, too short, or kept for nothing.
    """
    version = re.match(r"gpt-(\d+)(?:\.(\d+))?", endpoint.model)
    is_charged = version is not None and (int(version[1]), int(version[2] or 0)) >= _WRITES_ARE_CHARGED
    if not (sampling.is_sent_once and is_charged and OPENAI.is_at(endpoint.base_url)):
        return list(messages), {}
    lengths = [len(text_of(message)) for message in messages]
    if sum(lengths) < _CHARACTERS:
        return list(messages), {}
    marked = list(messages)
    if marked[0].get("role") == "system" and lengths[0] >= _CHARACTERS:
        part = {"type": text_kind, "text": text_of(marked[0]), "prompt_cache_breakpoint": _EXPLICIT}
        marked[0] = {**marked[0], "content": [part]}
    return marked, {"prompt_cache_options": _EXPLICIT}
