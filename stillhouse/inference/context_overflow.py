"""Whether an error says that the conversation is longer than the model's context, by its code or else its wording.

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
    # Most sellers: what is too long, or which limit it exceeds.
    r"(prompt|input|context|length of all messages) (is )?too long|max(imum)? (context|prompt) length"
    r"|exceed(s|ed)? (the |this |model |available )*context (window|limit|size|length)"
    r"|context (size|length) (has been )?exceeded|context window exceeds limit|context shift is disabled"
    r"|(prompt|input) length \W?\d+( tokens)?\W? (exceeds|is greater than)|greater than the context length"
    r"|(prompt|input) token count\b.*(exceeds|only supports up to)|input tokens \d+ cannot exceed"
    r"|exceeded model token limit|exceeds the max input token limit|exceed max message tokens|prompt exceeds max length"
    r"|total tokens exceeds the model's max|too many tokens: size limit exceeded|too many input tokens\. max"
    # vLLM, the last one of a prompt that fills the context: no request asks for less.
    r"|model's context length|model context window is|max_tokens must be at least 1"
    # TGI and Together; Groq and Cerebras; Qwen; LM Studio.
    r"|`inputs` (tokens \+ `max_new_tokens` must be|must have less than)|reduce the length of the (messages|prompt)"
    r"|range of input length should be|context the overflows"
)


def is_overflow(codes: Set[str], message: str) -> bool:
    """Whether one of the error's codes, or its message in lower case, says that the context is too short."""
    return bool(codes & _CODES) or _WORDINGS.search(message) is not None
