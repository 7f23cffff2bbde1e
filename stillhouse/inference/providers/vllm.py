"""vLLM's server, whose extensions the plain provider asks for."""

from typing import ClassVar

from stillhouse.inference.providers.provider import Provider


class Vllm(Provider):
    """https://docs.vllm.ai/en/latest/serving/openai_compatible_server."""

    # Of a prompt that fills the context: no request asks for less.
    overflow: ClassVar[str] = "max_tokens must be at least 1"
