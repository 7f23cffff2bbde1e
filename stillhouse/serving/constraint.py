"""Grammars enforced token by token, by llguidance (the extra `serve`)."""

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from stillhouse.serving.protocol import ApiError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class GrammarConstraint:
    """Tokens by which a completion stays within a grammar, and can end only where the grammar does."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> torch.Tensor:
        """See `Constraint`; after an error these are the tokens that end the completion."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits_N8 = bits[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
        return bits_N8.flatten()[: self._vocab_size].bool()

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        self._matcher.consume_token(token)

    def copy(self) -> "GrammarConstraint":
        """A constraint of another completion, if this one has not begun."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocab_size)

    def check(self) -> None:
        """Raises ApiError if the grammar was given up: it exceeds llguidance's limits of time or memory."""
        if self._matcher.is_error():
            raise ApiError(500, f"the answer's grammar failed: {_first_line(self._matcher)}", code="grammar_failed")


class GrammarCompiler:
    """Makes constraints over a tokenizer's tokens; `stop_ids` are those that end a completion."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", vocab_size: int, stop_ids: Collection[int]) -> None:
        self._hf_tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = sorted(stop_ids)

    def compile(self, grammar: str, cause: str) -> GrammarConstraint:
        """The constraint of a grammar, which the request's field `cause` needs; may take a second.

        Raises:
            ApiError: llguidance is not installed, or the grammar cannot be enforced.
        """
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            problem = (
                f"{cause} guarantees the form of an answer, for which this server needs llguidance; install the extra: "
                "pip install 'stillhouse[serve]'"
            )
            raise ApiError(400, problem, code="unsupported_value", param=cause) from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            problem = f"{cause} cannot be enforced: {_first_line(matcher)}; simplify the schema, or leave 'strict' out"
            raise ApiError(400, problem, code="unsupported_value", param=cause)
        return GrammarConstraint(matcher, self._vocab_size)

    @cached_property
    def _tokenizer(self) -> Any:
        from llguidance.hf import from_tokenizer

        return from_tokenizer(self._hf_tokenizer, n_vocab=self._vocab_size, eos_token=self._stop_ids)


def _first_line(matcher: Any) -> str:
    return matcher.get_error().partition("\n")[0]
