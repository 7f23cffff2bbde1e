"""Whether an error says that the conversation is longer than the model's context, by its code or else its wording.

A request that is too large for a minute's tokens (Groq's 413) is another thing, and so is a `max_tokens` above what the
model allows. The wordings are of public reports; each has a row in the tests.
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
    "|".join(
        (
            # OpenAI, OpenRouter, DeepSeek, Mistral, vLLM, LiteLLM; xAI; Ollama.
            r"max(imum)? (context|prompt) length",
            # Anthropic, Fireworks; Bedrock.
            r"(prompt|input|context) (is )?too long",
            # Anthropic; OpenAI's Responses; llama.cpp; Cloudflare.
            r"exceed(s|ed)? (the |this |model |available )*context (window|limit|length|size)",
            r"input length \W?\d+( tokens)?\W? exceeds",  # SGLang, Poolside, Volcengine, DeepInfra
            r"prompt length \W?\d+\W? (exceeds|is greater than)",  # TensorRT-LLM, TabbyAPI
            r"context (size|length) (has been )?exceeded|context shift is disabled",  # llama.cpp, also with HTTP 500
            r"model's context length|model context window is",  # vLLM, SGLang, Together; RKLLM
            r"max_tokens must be at least 1",  # vLLM of a prompt that fills the context; no request asks for less
            r"(input|prompt) token count\b.*(exceeds|only supports up to)",  # Gemini, Vertex, Copilot
            r"`inputs` (tokens \+ `max_new_tokens` must be|must have less than)",  # TGI, Together
            r"reduce the length of the (messages|prompt)",  # Groq, Cerebras
            r"length of all messages is too long",  # Perplexity
            r"context window exceeds limit",  # MiniMax
            r"prompt exceeds max length",  # Zhipu
            r"exceeded model token limit",  # Kimi
            r"range of input length should be",  # Qwen
            r"exceed max message tokens",  # Volcengine
            r"context the overflows|greater than the context length",  # LM Studio
            r"too many tokens: size limit exceeded|total tokens exceeds the model's max",  # Cohere
            r"too many input tokens\. max|exceeds the max input token limit",  # Bedrock
            r"input tokens \d+ cannot exceed",  # watsonx
        )
    )
)


def is_overflow(codes: Set[str], message: str) -> bool:
    """Whether one of the error's codes, or its message in lower case, says that the context is too short."""
    return bool(codes & _CODES) or _WORDINGS.search(message) is not None
