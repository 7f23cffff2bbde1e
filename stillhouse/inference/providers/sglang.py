"""SGLang's server."""

from typing import ClassVar

from stillhouse.inference.providers.provider import Provider


class Sglang(Provider):
    """https://docs.sglang.ai/basic_usage/openai_api."""

    overflow: ClassVar[str] = "longer than the model's context|requested token count exceeds"
