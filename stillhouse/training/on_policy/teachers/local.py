"""A teacher in this process: a frozen model, which also gives its full distribution."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from stillhouse.attention import use_attention
from stillhouse.chat.refs import SAFE_WEIGHTS, adapter_base, resolve_model
from stillhouse.config import OnPolicyTeacher
from stillhouse.errors import ConfigError
from stillhouse.serving.models import load_model
from stillhouse.training.head.scores import Reference
from stillhouse.training.model.blocks import compile_frozen_blocks, decoder_blocks
from stillhouse.training.model.load import quantisation, require_bitsandbytes
from stillhouse.training.model.packing import backbone_of, packs_exactly
from stillhouse.training.on_policy.teachers.packed import PackedModel, PackedTeacher, ScoringSettings
from stillhouse.training.on_policy.teachers.teacher import Alignment
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import shard_frozen
from stillhouse.types import Sample

MAX_BYTES: Final = 4 << 30
"""Hidden states of one teacher that are kept at most: half a million tokens of 4,096 numbers in half precision."""


class HiddenCache:
    """Keeps in host memory what a frozen teacher computed for the microbatches of one batch, for its other passes.

    A forward pass of a teacher of 8B parameters takes 16 GFLOP a token, and its hidden states are 8 KiB. A microbatch
    that no longer fits is computed each time.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: dict[tuple[bytes, ...], Tensor] = {}

    def get(self, views: Sequence[Sample], compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, or on the CPU the earlier one for the same views in this order."""
        key = tuple(np.asarray(part, np.int64).tobytes() for view in views for part in (view.token_ids, view.loss_mask))
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        hidden_NR = compute()
        if self._num_bytes + hidden_NR.nbytes <= self._max_bytes:
            self._num_bytes += hidden_NR.nbytes
            self._kept[key] = hidden_NR.cpu()
        return hidden_NR

    def clear(self) -> None:
        """Forget everything, as for the next batch."""
        self._kept.clear()
        self._num_bytes = 0


class LocalTeacher(PackedTeacher):
    """Scores packed rows in the dtype of its weights, independent of the student's precision.

    `model` is frozen and in evaluation mode. Ids below `vocabulary` are shared with the student, all rows of the output
    layer for None; the two `exchanged` ones mean to the student what the other means to the teacher. Each microbatch is
    compared with `num_passes` times. Several `ranks` share its blocks, and call it as `PackedModel` says; its weights
    are on the CPU before.
    """

    def __init__(
        self,
        settings: ScoringSettings,
        model: PreTrainedModel,
        device: torch.device,
        *,
        vocabulary: int | None = None,
        exchanged: tuple[int, int] | None = None,
        num_passes: int = 1,
        alignment: Alignment | None = None,
        compiled: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self._device = device
        self._exchanged = exchanged
        shared = ranks if ranks is not None and ranks.size > 1 else None
        # Processes that found different microbatches in theirs would wait for each other.
        self._cache = HiddenCache() if num_passes > 1 and shared is None else None
        with self._reading():
            packed = PackedModel(model, device, packing=packs_exactly(model), name=settings.name, ranks=ranks)
        super().__init__(settings, packed, alignment)
        self._vocabulary = packed.num_rows if vocabulary is None else vocabulary
        if compiled:
            compile_frozen_blocks(model)
        if shared is not None:
            shard_frozen(backbone_of(model), decoder_blocks(model), shared)
            model.get_output_embeddings().to(device)

    def reference(self, samples: Sequence[Sample]) -> Reference:
        views = [sample.read for sample in samples]
        if self._cache is None:
            hidden_NR = self._hidden_states(views)
        else:
            hidden_NR = self._cache.get(views, lambda: self._hidden_states(views)).to(self._device)
        return Reference(hidden_NR, self._packed.head, self._vocabulary, self._packed.scaling, self._exchanged)

    def begin_batch(self) -> None:
        """Forget the hidden states of the last batch."""
        if self._cache is not None:
            self._cache.clear()

    def _hidden_states(self, views: Sequence[Sample]) -> Tensor:
        with self._reading():
            return self._packed.hidden_states(views)[0]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        # The student's autocast would have the teacher compute in the student's type.
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            yield


def load_local_model(ref: str, settings: OnPolicyTeacher, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a local teacher on `device`, frozen and in evaluation mode.

    Raises:
        ConfigError: it cannot be loaded, or not in 4 bits.
    """
    if settings.dtype != "4bit":
        # `load_model` takes no device with an index, such as `cuda:1`.
        return load_model(ref, device="cpu", dtype=str(dtype).removeprefix("torch.")).to(device)  # type: ignore[arg-type]
    setting = f"teacher {settings.name!r} with dtype `4bit`"
    require_bitsandbytes(setting, device, "Leave out its `dtype`")
    path = resolve_model(ref)
    if adapter_base(Path(path)) is not None:
        raise ConfigError(f"{setting} is the adapter {ref!r}; expected whole weights. Merge it, or leave out `dtype`")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, quantization_config=quantisation(device, dtype), device_map={"": device}, **SAFE_WEIGHTS
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"teacher {settings.name!r}: model {ref!r} cannot be loaded: {error}") from error
    return use_attention(model).eval().requires_grad_(False)
