"""`Sizes`: how many tokens a request will take, learnt from those before it."""

from dataclasses import dataclass
from typing import Final

_FIRST_CHARACTERS_PER_TOKEN: Final = 4.0
"""Rule of thumb for English text (platform.openai.com/tokenizer)."""
_QUANTILE: Final = 0.9
_QUICKNESS: Final = 0.1
_SMOOTHING: Final = 0.05


@dataclass(slots=True)
class Sizes:
    """Running estimates; a quantile by stochastic approximation (Robbins and Monro, 1951)."""

    characters_per_token: float = _FIRST_CHARACTERS_PER_TOKEN
    completion_tokens: float | None = None
    """High quantile of the completions; None before the first."""
    mean_completion_tokens: float | None = None
    mean_tokens: float = 0.0
    """Mean of prompt and completion together."""

    def estimate(self, characters: int, max_tokens: int, *, surely: bool) -> float:
        """Tokens to set aside for a request: all it allows before the first answer, then what others took.

        Args:
            characters: of its prompt.
            max_tokens: the most its completion may have.
            surely: what most take at most, for a limit that must not be exceeded; else what they take on average.
        """
        completion = self.completion_tokens if surely else self.mean_completion_tokens
        at_most = max_tokens if completion is None or completion > max_tokens else completion
        return characters / self.characters_per_token + at_most

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
