"""The student: a causal language model of which all weights or an adapter are trained.

`peft` takes seconds to import and is imported only when there is an adapter. Dimensions: B samples, T time, H hidden,
V vocabulary.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.chat.refs import adapter_base, resolve_model
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError, TrainingError

logger = logging.getLogger(__name__)

_PROBE_TOLERANCE = 1e-2


class Student:
    """A model under training, seen the same way whether all of it is trained or an adapter.

    Args:
        model: what is called to sample and saved at the end: the causal language model, or peft's wrapper of it.
        causal_lm: the causal language model itself; an adapter's layers are inside it.
        tokenizer: its tokenizer, with the chat template.
        base_ref: model ref of the weights that training started from, below any adapter.
        dtype: type of computation.
    """

    def __init__(
        self,
        model: Any,
        causal_lm: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        base_ref: str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.causal_lm = causal_lm
        self.tokenizer = tokenizer
        self.base_ref = base_ref
        self._dtype = dtype
        self._backbone: nn.Module = causal_lm.base_model
        self.head: nn.Linear = causal_lm.get_output_embeddings()
        self._check_head()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the model computes, when it is trained and when it samples alike."""
        if self._dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    def hidden_states(self, inputs_BT: Tensor) -> Tensor:
        """Last hidden states [B, T, H]: what the head turns into logits."""
        return self._backbone(input_ids=inputs_BT, use_cache=False).last_hidden_state

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained, by name; tied weights come once."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def save(self, folder: Path) -> None:
        """Writes weights or adapter, tokenizer and chat template: a folder that is a model ref."""
        if self.model is self.causal_lm:
            self.causal_lm.save_pretrained(folder)
        else:
            # Left to itself peft looks the base model up on the hub, to see whether its vocabulary grew.
            self.model.save_pretrained(folder, save_embedding_layers=False)
        self.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Refuses a model whose logits are not head(hidden states), which training takes them to be."""
        inputs = torch.tensor([[0, 1, 2]], device=self.device)
        with self.precision():
            expected = self.causal_lm(input_ids=inputs, use_cache=False).logits.float()
            seen = self.head(self.hidden_states(inputs)).float()
        difference = (seen - expected).abs().max().item()
        if not difference <= _PROBE_TOLERANCE * max(1.0, expected.abs().max().item()):
            raise TrainingError(
                f"model {self.base_ref!r} ({type(self.causal_lm).__name__}): its logits differ by {difference:.3g} "
                "from its output layer applied to its hidden states; models that scale or cap their logits cannot "
                "be trained"
            )


def load_student(ref: str, config: StudentConfig, device: torch.device, seed: int) -> Student:
    """The student to train, in eval mode.

    Args:
        ref: a model ref, or the folder of an earlier student. An earlier adapter is continued when an adapter is asked
            for, over the same base, and merged into the weights when all of them are to be trained.
        config: what is trained and in which type.
        device: where to put it.
        seed: draws a new adapter's first matrices.

    Raises:
        ConfigError: the model cannot be loaded, or an earlier adapter has another shape than the config asks for.
    """
    path = Path(resolve_model(ref))
    base_ref = adapter_base(path) or ref
    dtype = getattr(torch, config.dtype)
    is_full = config.parameters == "full"
    causal_lm = _load(base_ref, torch.float32 if is_full else dtype).to(device)
    tokenizer = load_tokenizer(ref)
    if is_full:
        if base_ref != ref:
            causal_lm = _merged(causal_lm, path)
        return Student(causal_lm.requires_grad_(True).eval(), causal_lm, tokenizer, base_ref, dtype)
    adapted = _continued_adapter(causal_lm, path, config) if base_ref != ref else _new_adapter(causal_lm, config, seed)
    adapted.peft_config["default"].base_model_name_or_path = base_ref
    return Student(adapted.eval(), causal_lm, tokenizer, base_ref, dtype)


def _load(ref: str, dtype: torch.dtype) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_pretrained(resolve_model(ref), dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(f"student model {ref!r} cannot be loaded: {error}") from error


def _new_adapter(causal_lm: PreTrainedModel, config: StudentConfig, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    # "all-linear" leaves the output layer out, which is tied to the embedding in small models.
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
    )
    return get_peft_model(causal_lm, lora)


def _continued_adapter(causal_lm: PreTrainedModel, folder: Path, config: StudentConfig) -> Any:
    from peft import PeftModel

    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    for field, key in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        if settings[key] != getattr(config, field):
            raise ConfigError(
                f"student.{field} = {getattr(config, field)}: the adapter in {folder} has {settings[key]}; an adapter "
                "keeps its shape when it is continued. Use that value"
            )
    adapted = PeftModel.from_pretrained(causal_lm, folder, is_trainable=True)
    for module in adapted.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.lora_dropout
    return adapted


def _merged(causal_lm: PreTrainedModel, folder: Path) -> PreTrainedModel:
    from peft import PeftModel

    return PeftModel.from_pretrained(causal_lm, folder).merge_and_unload()
