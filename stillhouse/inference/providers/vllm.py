"""vLLM, and any other server of which nothing is known: https://docs.vllm.ai/en/latest/serving/openai_compatible_server."""

from typing import Final

from stillhouse.inference.providers.provider import OVERFLOW, Provider

# Of a prompt that fills the context: no request asks for less.
VLLM: Final = Provider(has_token_ids=True, wordings={OVERFLOW: "max_tokens must be at least 1"})
