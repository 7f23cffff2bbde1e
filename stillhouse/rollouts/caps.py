"""`RolloutCaps`: one rollout's own bound on tokens and money, kept by asking before each request."""

import math
from dataclasses import dataclass
from typing import Final

from stillhouse.config import RolloutsConfig
from stillhouse.inference.endpoint import Price
from stillhouse.types import Turn

_BYTES_PER_TOKEN: Final = 3
"""Of a prompt nobody has counted yet: what Chinese takes, and a third less than English does."""
_USEFUL_TOKENS: Final = 64
"""A completion bounded to less is not worth its prompt, unless the config bounds all of them to less."""


@dataclass(slots=True)
class _Answered:
    """The last completion, from which the size of the next prompt is told."""

    tokens: int
    """Of its prompt and of itself, which the next prompt holds both."""
    characters: int
    """Of its prompt."""
    prompt_tokens: int


class RolloutCaps:
    """What one rollout has spent, and what is left for its next completion.

    Completions are bounded exactly. Prompts are counted by the endpoint only once they are sent, so the next one is
    reckoned as what the last one held and the text added since, by the tokens a character took so far.

    Args:
        config: `max_tokens` and the caps.
        price: None where it is unknown; there is then no cap on money.
    """

    def __init__(self, config: RolloutsConfig, price: Price | None) -> None:
        self.has_cut = False
        """Whether the last completion was bounded to less than the config's `max_tokens`."""
        self._max_tokens = config.max_tokens
        self._tokens_left: float = math.inf if config.max_rollout_tokens is None else config.max_rollout_tokens
        self._usd_left: float = math.inf if config.max_rollout_usd is None else config.max_rollout_usd
        self._price = price
        self._last: _Answered | None = None

    @classmethod
    def of(cls, config: RolloutsConfig, price: Price | None) -> "RolloutCaps | None":
        """The caps of a config; None where it has none."""
        capped = config.max_rollout_tokens is not None or config.max_rollout_usd is not None
        return cls(config, price) if capped else None

    def allowed_tokens(self, num_characters: int) -> int | None:
        """`max_tokens` of the next request: the config's, or less where that would pass a cap.

        Args:
            num_characters: length of what is sent.

        Returns:
            None where too little is left for an answer of any use.
        """
        prompt_tokens = self._prompt_tokens(num_characters)
        allowed = min(self._max_tokens, self._tokens_left - prompt_tokens, self._affordable(prompt_tokens))
        return int(allowed) if allowed >= min(self._max_tokens, _USEFUL_TOKENS) else None

    def count(self, turn: Turn, num_characters: int, max_tokens: int) -> None:
        """Takes in a completion; what its endpoint did not report counts as the most it can have been.

        Args:
            turn: its facts.
            num_characters: length of what was sent for it.
            max_tokens: what it was bounded to.
        """
        self.has_cut = max_tokens < self._max_tokens
        prompt_tokens = turn.usage.get("prompt_tokens", self._prompt_tokens(num_characters))
        completion_tokens = turn.usage.get("completion_tokens", max_tokens)
        self._tokens_left -= prompt_tokens + completion_tokens
        if turn.cost_usd is not None:
            self._usd_left -= turn.cost_usd
        elif self._price is not None:
            self._usd_left -= self._price.worst(prompt_tokens, completion_tokens)
        self._last = _Answered(prompt_tokens + completion_tokens, num_characters, prompt_tokens)

    def _prompt_tokens(self, num_characters: int) -> int:
        last = self._last
        if last is None:
            return math.ceil(num_characters / _BYTES_PER_TOKEN)
        # The completion is among the characters added and among the tokens: counted twice, it errs on the safe side.
        added = max(num_characters - last.characters, 0)
        return last.tokens + math.ceil(added * last.prompt_tokens / max(last.characters, 1))

    def _affordable(self, prompt_tokens: int) -> float:
        """Tokens of a completion that the money left pays for at the dearest."""
        if self._price is None or math.isinf(self._usd_left):
            return math.inf
        prompt_usd = self._price.worst(prompt_tokens, 0)
        token_usd = (self._price.worst(prompt_tokens, self._max_tokens) - prompt_usd) / self._max_tokens
        left = self._usd_left - prompt_usd
        if token_usd <= 0:
            return math.inf if left >= 0 else 0.0
        return left / token_usd
