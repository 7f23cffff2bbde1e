"""A teacher in this process: a frozen model, which also gives its full distribution."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
from stillhouse.training.model.packing import packs_exactly
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView
from stillhouse.training.on_policy.teachers.hidden_cache import HiddenCache
from stillhouse.training.on_policy.teachers.packed import PackedModel, PackedTeacher, ScoringSettings
from stillhouse.training.on_policy.teachers.teacher import Alignment, view_of


class LocalTeacher(PackedTeacher):
    """Scores packed rows in the dtype of its weights, independent of the student's precision.

    Args:
        settings: how it scores.
        model: frozen, in evaluation mode.
        device: where it computes.
        vocabulary: ids below it are shared with the student; None where all rows of the output layer are.
        exchanged: two shared ids, each of which means to the student what the other means to the teacher.
        num_passes: how often each microbatch is compared with.
        weights: brings offloaded weights to `device`; None if they are there.
        alignment: from its tokens to the student's; None if they are the same.
        compiled: compile its blocks.
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
        weights: "HostWeights | None" = None,
        alignment: Alignment | None = None,
        compiled: bool = False,
    ) -> None:
        self._device = device
        self._weights = weights
        self._exchanged = exchanged
        self._cache = HiddenCache() if num_passes > 1 else None
        with self._reading():
            packed = PackedModel(model, device, packing=packs_exactly(model), name=settings.name)
        super().__init__(settings, packed, alignment)
        self._vocabulary = packed.num_rows if vocabulary is None else vocabulary
        if compiled:
            compile_frozen_blocks(model)

    def reference(self, samples: Sequence[ScoredSample]) -> Reference:
        """See `ExactTeacher`."""
        views = [view_of(sample) for sample in samples]
        if self._cache is None:
            hidden_NR = self._hidden_states(views)
        else:
            hidden_NR = self._cache.get(views, lambda: self._hidden_states(views)).to(self._device)
        return Reference(hidden_NR, self._packed.head, self._vocabulary, self._packed.scaling, self._exchanged)

    def begin_batch(self) -> None:
        """Forget the hidden states of the last batch."""
        if self._cache is not None:
            self._cache.clear()

    def _hidden_states(self, views: Sequence[TeacherView]) -> Tensor:
        with self._reading():
            return self._packed.hidden_states(views)[0]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        # The student's autocast would have the teacher compute in the student's type.
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            if self._weights is None:
                yield
            else:
                with self._weights.present():
                    yield


class HostWeights:
    """Layers of a model whose weights are in host memory except while they are used.

    The model comes frozen and on the host. Everything but its layers is moved to the device for good: a loss over the
    full distribution reads embedding and output layer later.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self._device = device
        inside = {id(t): t for block in decoder_blocks(model) for t in (*block.parameters(), *block.buffers())}
        self._tensors = list(inside.values())
        self._host = [tensor.data.pin_memory() if device.type == "cuda" else tensor.data for tensor in self._tensors]
        for tensor in (*model.parameters(), *model.buffers()):
            if id(tensor) not in inside:
                tensor.data = tensor.data.to(device)
        self._offload()

    @contextmanager
    def present(self) -> Iterator[None]:
        """Have the layers on the device inside the block; frozen weights need not be copied back."""
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host.to(self._device, non_blocking=True)
        try:
            yield
        finally:
            self._offload()

    def _offload(self) -> None:
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host


def load_local_model(ref: str, settings: OnPolicyTeacher, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Return a local teacher's model, frozen and in evaluation mode: on `device`, or on the host where it is offloaded.

    Raises:
        ConfigError: it cannot be loaded, or not in 4 bits.
    """
    name = str(dtype).removeprefix("torch.")
    if not settings.quantised:
        # `load_model` takes no device with an index, such as `cuda:1`.
        model = load_model(ref, device="cpu", dtype=name)  # type: ignore[arg-type]
        return model if settings.offload else model.to(device)
    setting = f"teacher {settings.name!r} with quantised: true"
    require_bitsandbytes(setting, device, "Leave out `quantised`, which holds its weights in `dtype`")
    path = resolve_model(ref)
    if settings.offload:
        raise ConfigError(f"{setting} cannot be offloaded too; leave out `offload` or `quantised`")
    if adapter_base(Path(path)) is not None:
        raise ConfigError(
            f"{setting} is the adapter {ref!r}; expected whole weights. Merge it, or leave out `quantised`"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, quantization_config=quantisation(device, dtype), device_map={"": device}, **SAFE_WEIGHTS
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"teacher {settings.name!r}: model {ref!r} cannot be loaded: {error}") from error
    return use_attention(model).eval().requires_grad_(False)
