"""Errors that say that a conversation is longer than the model's context, told by their code or else their wording.

A request that is too large for a minute's tokens (Groq's 413) is another thing, and so is a `max_tokens` above what the
model allows. The wordings are of public reports; each stands under its seller's name in the tests.
"""

import re
from collections.abc import Set
from typing import Final

_CODES: Final = frozenset(
    # OpenAI, Groq and Cerebras; llama.cpp; Z.ai; GitHub Models; Zhipu.
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded", "tokens_limit_reached"}
    | {"1261"}
)
_WORDINGS: Final = re.compile(
    # Most sellers speak of the context, or of a prompt or input that is longer than something.
    r"\bcontext (window|length|size|limit|shift|the overflows)|max(imum)? prompt length"
    r"|\b(prompt|input|all messages)(length|token count|tokens|is|of|but model|[\W\d])*"
    r"(too long|exceeds|greater than|only supports up to)"
    # Cohere and Nova; Kimi; Volcengine; watsonx; Groq and Cerebras; Qwen; TGI and Together.
    r"|too many tokens: size limit|too many input tokens\. max|total tokens exceeds the model's max|model token limit"
    r"|exceed max message tokens|input tokens \d+ cannot exceed|reduce the length of the (messages|prompt)"
    r"|range of input length|`inputs` (tokens \+ `max_new_tokens` must be|must have less than)"
    # vLLM, of a prompt that fills the context: no request asks for less.
    r"|max_tokens must be at least 1"
)


def is_overflow(codes: Set[str], message: str) -> bool:
    """Return whether one of an error's codes, or its message in lower case, says that the context is too short."""
    return bool(codes & _CODES) or _WORDINGS.search(message) is not None
