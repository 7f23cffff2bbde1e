"""A GGUF file for sampling and scoring, run by llama.cpp through the package llama-cpp-python.

Dimensions: B rows, T tokens, V vocabulary.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stillhouse.errors import ConfigError
from stillhouse.serving.score import RankedToken, ranked

if TYPE_CHECKING:
    from stillhouse.serving.models import Device

_MAX_SEQUENCES: Final = 4
"""Sampled at a time. llama.cpp reserves keys and values of a whole context for each."""
_MAX_CONTEXT: Final = 8192
_BATCH_TOKENS: Final = 256
"""Of one pass, whose logits are held at once."""
_ERROR: Final = 4
"""GGML_LOG_LEVEL_ERROR of ggml.h."""


@cache
def llama_cpp() -> Any:
    """Return the package, which logs errors alone; raise ConfigError if it cannot be imported."""
    try:
        import llama_cpp as package
    except ImportError as error:
        raise ConfigError(
            f"GGUF files are run by llama.cpp, and llama-cpp-python cannot be imported ({error}); run `make llama-cpp`"
        ) from error

    @package.llama_log_callback
    def say(level: int, text: bytes, _: Any) -> None:
        if level == _ERROR:
            sys.stderr.write(text.decode(errors="replace"))

    package.llama_log_set(say, None)
    package.llama_backend_init()
    package.stillhouse_log = say  # kept, as C holds no reference
    return package


def load_file(path: Path, *, device: "Device" = "auto", vocab_only: bool = False) -> Any:
    """Return llama.cpp's model of a GGUF file; raise ConfigError if it cannot be loaded."""
    api = llama_cpp()
    settings = api.llama_model_default_params()
    settings.vocab_only = vocab_only
    if device == "cpu":
        settings.n_gpu_layers = 0
    if not (model := api.llama_model_load_from_file(str(path).encode(), settings)):
        raise ConfigError(f"{path}: llama.cpp cannot load it; what it says stands above, or in the server's log")
    return model


class _Fed(NamedTuple):
    token: int
    position: int
    sequence: int
    is_wanted: bool
    """Whether its logits are."""


class GgufModel:
    """A loaded file, with what `stillhouse.serving.passes.SlotPasses` offers for a model of transformers.

    Raises ConfigError if llama-cpp-python is not there, or the file cannot be loaded.
    """

    may_change = is_training = False

    def __init__(self, path: Path, *, device: "Device", num_threads: int | None, max_batch: int) -> None:
        self._api = api = llama_cpp()
        self._model = load_file(path, device=device)
        self.max_batch = min(max_batch, _MAX_SEQUENCES)
        self.context_length = min(api.llama_model_n_ctx_train(self._model), _MAX_CONTEXT)
        self.vocab_size: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._context = api.llama_init_from_model(self._model, self._settings(num_threads))
        if not self._context:
            raise ConfigError(f"{path}: llama.cpp has no room for keys and values of {self.context_length} tokens")
        self._batch = api.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self.cache = SequenceCache(api, api.llama_get_memory(self._context), self.max_batch)

    def _settings(self, num_threads: int | None) -> Any:
        settings = self._api.llama_context_default_params()
        # One more sequence is scored while others are sampled.
        settings.n_seq_max = self.max_batch + 1
        settings.n_ctx = settings.n_seq_max * self.context_length
        settings.kv_unified = True
        settings.n_batch = settings.n_ubatch = _BATCH_TOKENS
        settings.n_threads = settings.n_threads_batch = num_threads or torch.get_num_threads()
        return settings

    def feed(self, first_slot: int, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> torch.Tensor:
        """Return logits [B, V] after the new `tokens` of the slots from `first_slot` on, which hold `starts` before."""
        fed: list[_Fed] = []
        for slot, (row, start) in enumerate(zip(tokens, starts, strict=True), first_slot):
            sequence = self.cache.cut(slot, start)
            last = start + len(row) - 1
            fed += (_Fed(token, place, sequence, place == last) for place, token in enumerate(row, start))
        return torch.from_numpy(np.concatenate(list(self._logits(fed))))

    def rank(
        self, sequences: Sequence[Sequence[int]], num_top: int, *, temperature: float = 1.0
    ) -> list[list[RankedToken]]:
        """Return what `stillhouse.serving.score.rank_tokens` does."""
        found: list[list[RankedToken]] = []
        for tokens in sequences:
            sequence, targets = self.cache.cut(self.max_batch, 0), iter(tokens[1:])
            row: list[RankedToken] = []
            for logits in self._logits([_Fed(token, at, sequence, True) for at, token in enumerate(tokens[:-1])]):
                chosen = torch.tensor([next(targets) for _ in logits])
                row += ranked(torch.from_numpy(logits)[None] / temperature, chosen[None], num_top)[0]
            found.append(row)
        return found

    def clear(self) -> None:
        for slot in range(self.max_batch + 1):
            self.cache.cut(slot, 0)

    def _logits(self, fed: Sequence[_Fed]) -> Iterator[np.ndarray]:
        """Feed the tokens, and yield float32 logits [T, V] of those wanted, pass by pass."""
        batch = self._batch
        for first in range(0, len(fed), _BATCH_TOKENS):
            part = fed[first : first + _BATCH_TOKENS]
            batch.n_tokens = len(part)
            for index, one in enumerate(part):
                batch.token[index], batch.pos[index] = one.token, one.position
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, one.sequence
                batch.logits[index] = one.is_wanted
            if code := self._api.llama_decode(self._context, batch):
                raise RuntimeError(f"llama_decode failed with code {code} on {len(part)} tokens")
            if num_wanted := sum(one.is_wanted for one in part):
                shape = (num_wanted, self.vocab_size)
                yield np.ctypeslib.as_array(self._api.llama_get_logits(self._context), shape=shape).copy()


class SequenceCache:
    """llama.cpp's sequences as the slots of `stillhouse.serving.slots.SlotTable`, and one behind them for scoring."""

    longest: int | None = None

    def __init__(self, api: Any, memory: Any, num_slots: int) -> None:
        self.num_slots = num_slots
        self._api, self._memory = api, memory
        self._sequences = list(range(num_slots + 1))

    def reserve(self, num_slots: int, num_columns: int) -> None:
        """All room is there from the beginning."""

    def cut(self, slot: int, length: int) -> int:
        """Drop what a slot holds from position `length` on; return its sequence."""
        self._api.llama_memory_seq_rm(self._memory, self._sequences[slot], length, -1)
        return self._sequences[slot]

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], num_columns: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            ends = (self._sequences[source], self.cut(target, 0))
            self._api.llama_memory_seq_cp(self._memory, *ends, 0, num_columns)

    def swap_slots(self, first: int, second: int, num_columns: int) -> None:
        sequences = self._sequences
        sequences[first], sequences[second] = sequences[second], sequences[first]
