"""A served model with the adapters that clients load beside it, of which each pass uses one or none.

`peft` takes seconds to import and is imported with the first adapter.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from stillhouse.chat.refs import SAFE_WEIGHTS, require_safetensors
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AdaptedModel:
    """Switches one model between its own weights and its adapters; used by one thread.

    Args:
        model: in evaluation mode.
    """

    def __init__(self, model: "PreTrainedModel") -> None:
        self.model = model
        self._wrapper: Any = None
        self._keys: dict[str, str] = {}
        """Name to the key that peft knows the adapter by, which may hold no dot."""
        self._folders: dict[str, str] = {}
        self._num_loaded = 0

    @property
    def folders(self) -> dict[str, str]:
        """Where the adapters were loaded from, by name."""
        return dict(self._folders)

    def load(self, name: str, folder: str, *, in_place: bool) -> None:
        """Adds an adapter.

        Args:
            name: what requests call it.
            folder: as peft saves it, on this machine.
            in_place: replace one of this name.

        Raises:
            ValueError: there is no such adapter, it does not fit, or the name is taken.
        """
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
            self.unload(name)
        self._keys[name], self._folders[name] = key, folder

    def unload(self, name: str) -> None:
        """Drops an adapter.

        Raises:
            ValueError: there is none of this name.
        """
        if name not in self._keys:
            raise ValueError(f"The lora adapter '{name}' cannot be found.")
        del self._folders[name]
        with _quiet():
            self._wrapper.delete_adapter(self._keys.pop(name))

    def reload(self, folder: str) -> None:
        """Takes the weights in a folder in place of the model's own.

        Raises:
            ValueError: there are none, or of another shape.
        """
        if not (Path(folder) / "config.json").is_file():
            raise ValueError(f"weights in '{folder}' cannot be loaded: there is no config.json")
        try:
            weights = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype, **SAFE_WEIGHTS).state_dict()
            own = self.model.state_dict() if self._wrapper is None else self._wrapper.unload().state_dict()
            if own.keys() != weights.keys():
                raise ValueError(f"it holds {len(weights)} tensors, the model {len(own)}")
            self.model.load_state_dict(weights)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise ValueError(f"weights in {folder} cannot be loaded: {error}") from error
        self._wrapper = None
        self._keys.clear()
        self._folders.clear()

    def switch(self, name: str | None) -> None:
        """Makes the next passes those of an adapter, or of the model itself."""
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
    """Without peft's warnings of a deprecated property and of which adapter is active, which `switch` decides."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "Adapter .* was active", UserWarning)
        yield
