"""SGLang: https://docs.sglang.ai/basic_usage/openai_api."""

from typing import Final

from stillhouse.inference.providers.provider import OVERFLOW, Provider

SGLANG: Final = Provider(wordings={OVERFLOW: "longer than the model's context|requested token count exceeds"})
