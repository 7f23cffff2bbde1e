"""`PromptTokens`: how many tokens an endpoint may make of a prompt that nobody has counted yet."""

import math
from typing import Final

_FIRST: Final = 1.0
"""Tokens a character before anything is known. English has about 0.25; few texts in any language have more than 1."""
_MIN_SEEN: Final = 20
_MIN_CHARACTERS: Final = 200
_MARGIN: Final = 1.25
"""Times the highest ratio seen: the next prompt may be worse than all before."""
_TEMPLATE: Final = 64
"""Tokens a chat template adds however short the prompt is."""


class PromptTokens:
    """An estimate that leans high: the highest ratio of tokens to characters seen, and a quarter more."""

    def __init__(self) -> None:
        self._highest = 0.0
        self._num_seen = 0

    def learn(self, characters: int, tokens: int) -> None:
        """Takes in what an endpoint made of one prompt; a short one tells more of the template than of the text."""
        if characters < _MIN_CHARACTERS:
            return
        self._num_seen += 1
        self._highest = max(self._highest, (tokens - _TEMPLATE) / characters)

    def most(self, characters: int) -> int:
        """The most tokens to expect of so many characters."""
        ratio = _FIRST if self._num_seen < _MIN_SEEN else self._highest * _MARGIN
        return math.ceil(characters * ratio) + _TEMPLATE
