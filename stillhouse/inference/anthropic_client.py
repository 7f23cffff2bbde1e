"""The `anthropic` package as the client of Anthropic's own API."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import anthropic

from stillhouse.inference.openai_client import OpenAIClient


class AnthropicClient(OpenAIClient):
    """An `HttpClient` over the `anthropic` package, which was generated as `openai` was."""

    package: ClassVar[ModuleType] = anthropic
    connect: ClassVar[Callable[..., Any]] = partial(anthropic.AsyncAnthropic, open_telemetry=False)
