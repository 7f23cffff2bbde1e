"""The server of llama.cpp, and of programs around it."""

from typing import ClassVar

from stillhouse.inference.providers.provider import Provider


class LlamaCpp(Provider):
    """https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md; LM Studio words the third."""

    overflow_codes: ClassVar[str] = "exceed_context_size_error"
    overflow: ClassVar[str] = r"\bcontext (size|shift|the overflows)"
