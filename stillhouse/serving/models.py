"""Loading models for sampling and scoring, and the LoRA adapters that clients load beside a served model.

`peft` takes seconds to import and is imported with the first adapter.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from stillhouse.attention import use_attention
from stillhouse.chat.refs import SAFE_WEIGHTS, adapter_base, base_revision, require_safetensors, resolve_model
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def load_model(
    ref: str, *, device: Device = "auto", dtype: Dtype = "float32", num_threads: int | None = None
) -> "PreTrainedModel":
    """Loads the model of a ref for inference; an adapter's folder gives its base with the adapter merged in.

    Device `auto` takes CUDA if available. Type `auto` keeps the stored one on CUDA and takes float32 on a CPU.

    Raises:
        ConfigError: there is no model at `ref`, or `device` is `cuda` without one.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda' but torch finds no CUDA device; use device 'auto' or 'cpu'")
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    # A progress bar would break into the caller's own display.
    transformers_logging.disable_progress_bar()
    path = resolve_model(ref)
    base = adapter_base(Path(path))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path if base is None else resolve_model(base),
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            revision=base_revision(Path(path)),
            **SAFE_WEIGHTS,
        )
        if base is not None:
            from peft import PeftModel

            require_safetensors(Path(path))
            model = PeftModel.from_pretrained(model, path).merge_and_unload()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"model {ref!r} cannot be loaded: {error}") from error
    return use_attention(model).to(device).eval().requires_grad_(False)


class AdaptedModel:
    """Switches one model between its own weights and its adapters; used by one thread.

    Methods raise ValueError for what is missing, does not fit or has a name that is taken, and then change nothing.
    """

    def __init__(self, model: "PreTrainedModel") -> None:
        self.model = model
        self.folders: dict[str, str] = {}
        """Folders of the loaded adapters by name; replaced whenever it changes."""
        self._wrapper: Any = None
        self._keys: dict[str, str] = {}
        """Name to peft's key, which may hold no dot."""
        self._num_loaded = 0

    def load(self, name: str, folder: str, *, in_place: bool) -> None:
        """Adds the adapter that peft saved in `folder`, or replaces the one of this name."""
        from peft import PeftModel

        if name in self._keys and not in_place:
            raise ValueError(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
        if not (Path(folder) / "adapter_config.json").is_file():
            raise ValueError(f"No adapter found for '{folder}': there is no adapter_config.json")
        key = f"adapter{self._num_loaded}"
        try:
            require_safetensors(Path(folder))
            with _quiet():
                if self._wrapper is None:
                    self._wrapper = PeftModel.from_pretrained(self.model, folder, adapter_name=key).eval()
                else:
                    self._wrapper.load_adapter(folder, adapter_name=key)
        except (OSError, RuntimeError, ValueError, SafetensorError, ConfigError) as error:
            raise ValueError(f"adapter '{name}' in {folder} cannot be loaded: {error}") from error
        self._num_loaded += 1
        if name in self._keys:
            self._delete(name)
        self._keys[name] = key
        self.folders = {**self.folders, name: folder}

    def unload(self, name: str) -> None:
        """Drops an adapter."""
        if name not in self._keys:
            raise ValueError(f"The lora adapter '{name}' cannot be found.")
        self.folders = {other: folder for other, folder in self.folders.items() if other != name}
        self._delete(name)

    def _delete(self, name: str) -> None:
        with _quiet():
            self._wrapper.delete_adapter(self._keys.pop(name))

    def reload(self, folder: str) -> None:
        """Replaces the model's weights by those of a folder."""
        if not (Path(folder) / "config.json").is_file():
            raise ValueError(f"weights in '{folder}' cannot be loaded: there is no config.json")
        try:
            weights = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype, **SAFE_WEIGHTS).state_dict()
            current = self.model.state_dict() if self._wrapper is None else self._wrapper.unload().state_dict()
            if current.keys() != weights.keys():
                raise ValueError(f"it holds {len(weights)} tensors, the model {len(current)}")
            self.model.load_state_dict(weights)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise ValueError(f"weights in {folder} cannot be loaded: {error}") from error
        self._wrapper = None
        self._keys = {}
        self.folders = {}

    def switch(self, name: str | None) -> None:
        """Selects the adapter of the next passes; None selects the model alone."""
        if self._wrapper is None:
            return
        tuner = self._wrapper.base_model
        if name is None:
            tuner.disable_adapter_layers()
        else:
            tuner.enable_adapter_layers()
            tuner.set_adapter(self._keys[name], inference_mode=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences peft's warnings about a deprecated property and the active adapter, which `switch` sets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "Adapter .* was active", UserWarning)
        yield
