"""`RolloutCaps`: the bound on tokens of one rollout, checked before each request."""

import math
from dataclasses import dataclass
from typing import Final

from stillhouse.config import RolloutsConfig
from stillhouse.types import Turn

_BYTES_PER_TOKEN: Final = 3
"""Bytes per token of a prompt not counted yet: as Chinese has; English has half as many again."""
_USEFUL_TOKENS: Final = 64
"""Least `max_tokens` worth the price of a prompt, unless the config bounds all completions to less."""


@dataclass(slots=True)
class _LastRequest:
    """Sizes of the last request, from which the next prompt's is estimated."""

    total_tokens: int
    """Prompt and completion, both of which the next prompt contains."""
    prompt_characters: int
    prompt_tokens: int


class RolloutCaps:
    """Tokens left for the next completion of one rollout.

    Completions are bounded exactly. The endpoint counts a prompt only once it is sent, so that the next prompt is
    estimated: the tokens of the last request, and the text added since at its ratio of tokens to characters.
    """

    def __init__(self, config: RolloutsConfig) -> None:
        self.has_cut = False
        """True if the last completion was bounded to less than the config's `max_tokens`."""
        self._max_tokens = config.max_tokens
        self._tokens_left: float = math.inf if config.max_rollout_tokens is None else config.max_rollout_tokens
        self._last: _LastRequest | None = None

    def allowed_tokens(self, num_characters: int) -> int | None:
        """Return `max_tokens` of the next request: the config's, or less where that would pass a cap.

        None where too little is left for a useful answer. `num_characters` is the length of the prompt.
        """
        prompt_tokens = self._prompt_tokens(num_characters)
        allowed = min(self._max_tokens, self._tokens_left - prompt_tokens)
        return int(allowed) if allowed >= min(self._max_tokens, _USEFUL_TOKENS) else None

    def count(self, turn: Turn, num_characters: int, max_tokens: int) -> None:
        """Count a completion; usage that the endpoint did not report counts as the most it can have been."""
        self.has_cut = max_tokens < self._max_tokens
        prompt_tokens = turn.usage.get("prompt_tokens", self._prompt_tokens(num_characters))
        completion_tokens = turn.usage.get("completion_tokens", max_tokens)
        self._tokens_left -= prompt_tokens + completion_tokens
        self._last = _LastRequest(prompt_tokens + completion_tokens, num_characters, prompt_tokens)

    def _prompt_tokens(self, num_characters: int) -> int:
        last = self._last
        if last is None:
            return math.ceil(num_characters / _BYTES_PER_TOKEN)
        # The completion counts twice, as tokens and as added characters, which errs on the safe side.
        added = max(num_characters - last.prompt_characters, 0)
        return last.total_tokens + math.ceil(added * last.prompt_tokens / max(last.prompt_characters, 1))
