"""`Sizes`: how many tokens a request will take, learnt from those before it."""

import math
from dataclasses import dataclass
from typing import Final

_FIRST_CHARACTERS_PER_TOKEN: Final = 4.0
"""Rule of thumb for English text (platform.openai.com/tokenizer)."""
_QUANTILE: Final = 0.9
_QUICKNESS: Final = 0.1
_SMOOTHING: Final = 0.05
_MIN_WATCHED: Final = 40
_CLEARLY_MORE: Final = 2.0


@dataclass(slots=True)
class Sizes:
    """Running estimates; a quantile by stochastic approximation (Robbins and Monro, 1951)."""

    characters_per_token: float = _FIRST_CHARACTERS_PER_TOKEN
    completion_tokens: float | None = None
    """High quantile of the completions; None before the first."""
    mean_completion_tokens: float | None = None
    mean_tokens: float = 0.0
    """Mean of prompt and completion together."""

    reserves_all: bool = False
    """Whether the provider sets aside all that a request allows, whatever it samples (OpenAI's guide)."""
    _last_remaining: float = -math.inf
    _last_num_sent: int = 0

    def estimate(self, characters: int, max_tokens: int, *, surely: bool) -> float:
        """Tokens to set aside for a request: all it allows before the first answer, then what others took.

        Args:
            characters: of its prompt.
            max_tokens: the most its completion may have.
            surely: what most take at most, for a limit that must not be exceeded; else what they take on average.
        """
        completion = self.completion_tokens if surely else self.mean_completion_tokens
        all_of_it = completion is None or completion > max_tokens or self.reserves_all
        at_most = max_tokens if all_of_it or completion is None else completion
        return characters / self.characters_per_token + at_most

    def watch(self, remaining: float, num_sent: int, max_tokens: int) -> None:
        """Headers tell what is left after `num_sent` requests: whether each took all that it allows.

        What is left falls by what was taken less what came in again, so the fall alone never says too much.

        Args:
            remaining: tokens left.
            num_sent: requests sent so far.
            max_tokens: the most a completion may have.
        """
        fall, num = self._last_remaining - remaining, num_sent - self._last_num_sent
        if 0 < num < _MIN_WATCHED and fall >= 0.0:
            return
        self._last_remaining, self._last_num_sent = remaining, num_sent
        if num >= _MIN_WATCHED and fall > num * math.sqrt(self.mean_tokens * max(max_tokens, 1.0)):
            self.reserves_all = max_tokens > _CLEARLY_MORE * self.mean_tokens

    def learn(self, characters: int, prompt_tokens: int, completion_tokens: int) -> None:
        """An answer tells what its request took."""
        if prompt_tokens > 0 and characters > 0:
            self.characters_per_token += _SMOOTHING * (characters / prompt_tokens - self.characters_per_token)
        if self.completion_tokens is None:
            self.completion_tokens = float(completion_tokens)
            self.mean_completion_tokens = self.completion_tokens
            self.mean_tokens = float(prompt_tokens + completion_tokens)
            return
        assert self.mean_completion_tokens is not None
        self.mean_completion_tokens += _SMOOTHING * (completion_tokens - self.mean_completion_tokens)
        above = completion_tokens > self.completion_tokens
        scale = max(self.completion_tokens, 1.0)
        self.completion_tokens = max(
            1.0, self.completion_tokens + _QUICKNESS * scale * (_QUANTILE if above else _QUANTILE - 1.0)
        )
        self.mean_tokens += _SMOOTHING * (prompt_tokens + completion_tokens - self.mean_tokens)
