"""SGLang's server: https://docs.sglang.ai/basic_usage/openai_api."""

from typing import Final

from stillhouse.inference.providers.provider import Provider

SGLANG: Final = Provider(overflow="longer than the model's context|requested token count exceeds")
