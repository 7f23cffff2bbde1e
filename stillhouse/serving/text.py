"""Text of a completion while its tokens arrive."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PART_OF_A_CHARACTER = "\ufffd"


class CompletionText:
    """Whole characters of a completion up to the first of the `stop` strings.

    Text that may be the beginning of a stop string is held back until it is known not to be one. The token that ends
    the completion, one of `stop_ids`, is no part of the text, nor are special tokens with `skip_special_tokens`.
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
        self._ids: list[int] = []
        self._start = 0
        """First token of those that are decoded again, since a token's text may depend on the one before."""
        self._num_decoded = 0
        self._held = ""
        self._released: list[str] = []
        self._is_stopped = False

    def read(self, token: int) -> bool:
        """Takes in the next token; returns whether it completes a stop string."""
        if token not in self._stop_ids:
            self._ids.append(token)
            self._add(self._decode(is_end=False))
        return self._is_stopped

    def finish(self, ids: Sequence[int]) -> str:
        """The whole text of a completion of these tokens, of which all or none were read; releases all of it."""
        if not self._ids:
            self._ids = [token for token in ids[-1:] if token not in self._stop_ids]
            self._ids[:0] = ids[:-1]
        if not self._is_stopped:
            self._add(self._decode(is_end=True))
            self._release(len(self._held))
        return "".join(self._released)

    def _decode(self, *, is_end: bool) -> str:
        """Text of the tokens not decoded yet; empty while they end within a character."""
        before, after = (
            self._tokenizer.decode(self._ids[self._start : end], skip_special_tokens=self._skip_special_tokens)
            for end in (self._num_decoded, len(self._ids))
        )
        if after.endswith(_PART_OF_A_CHARACTER) and not is_end:
            return ""
        self._start, self._num_decoded = self._num_decoded, len(self._ids)
        return after[len(before) :]

    def _add(self, text: str) -> None:
        self._held += text
        # By their ends, as if the characters came one by one: where tokens begin and end must not matter.
        places = [(place + len(stop), place) for stop in self._stop if (place := self._held.find(stop)) >= 0]
        if places:
            self._is_stopped = True
            self._release(min(places)[1])
        else:
            self._release(len(self._held) - len(beginning_of(self._stop, self._held)))

    def _release(self, end: int) -> None:
        if end:
            self._released.append(self._held[:end])
        self._held = self._held[end:]


def beginning_of(marks: Sequence[str], text: str) -> str:
    """The longest end of `text` with which one of `marks` begins, but not all of the mark."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    starts = range(max(0, len(text) - longest), len(text))
    return next((text[start:] for start in starts if any(mark.startswith(text[start:]) for mark in marks)), "")
