"""Text of a completion, which ends before the first of its stop strings."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PART_OF_A_CHARACTER = "\ufffd"


class CompletionText:
    """Reads the tokens of one completion.

    The token that ends it, one of `stop_ids`, is no part of the text, nor are special tokens with
    `skip_special_tokens`.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        stop_ids: Collection[int],
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._stop = stop
        self._skip_special_tokens = skip_special_tokens
        self._longest = max(map(len, stop), default=0)
        self._ids: list[int] = []
        self._start = 0
        """First token of those that are decoded again, since a token's text may depend on the one before."""
        self._num_decoded = 0
        self._tail = ""

    def read(self, token: int) -> bool:
        """Take in the next token; return whether a stop string is complete."""
        if token not in self._stop_ids:
            self._ids.append(token)
            before = self._decode(self._ids[self._start : self._num_decoded])
            after = self._decode(self._ids[self._start :])
            if not after.endswith(_PART_OF_A_CHARACTER):
                self._start, self._num_decoded = self._num_decoded, len(self._ids)
                self._tail = self._tail[-self._longest :] + after[len(before) :]
        return any(stop in self._tail for stop in self._stop)

    def of(self, ids: Sequence[int]) -> str:
        """Return the text of a completion of these tokens."""
        text = self._decode(ids[:-1] if ids and ids[-1] in self._stop_ids else ids)
        # By their ends, as if the characters came one by one: where tokens begin and end must not matter.
        places = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        return text[: min(places)[1]] if places else text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
