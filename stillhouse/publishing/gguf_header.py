"""The head of a GGUF file, by llama.cpp's own readers: its fields, the shapes of its tensors, its vocabulary."""

from functools import cache
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import ConfigError

_EXACT: Final = frozenset({0, 1, 7, 32})
"""`general.file_type` of float32, float16, q8_0 and bfloat16 (llama_ftype in llama.h)."""


class GgufHeader:
    """Raises ConfigError if llama.cpp is not there, or does not load the file."""

    def __init__(self, path: Path) -> None:
        from stillhouse.serving.gguf import llama_cpp, load_file

        self.api = llama_cpp()
        try:
            import gguf
        except ImportError as error:
            raise ConfigError(f"{path} is read by the package gguf ({error}); run `make llama-cpp`") from error
        self.vocabulary = self.api.llama_model_get_vocab(load_file(path, vocab_only=True))
        self._reader = gguf.GGUFReader(path)
        self.shapes = {tensor.name: tensor.shape for tensor in self._reader.tensors}

    def value(self, key: str) -> Any:
        """Return the value of a field, None where there is none."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    @property
    def is_exact(self) -> bool:
        """Return whether the weights have 8 bits or more."""
        return self.value("general.file_type") in _EXACT


@cache
def header_of(path: Path) -> GgufHeader:
    """Return the header of a file, which is read once: a vocabulary takes a second."""
    return GgufHeader(path)
