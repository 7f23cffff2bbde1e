"""The student: a causal language model of which all weights or an adapter are trained."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.errors import TrainingError
from stillhouse.training.model.attention import packs_exactly
from stillhouse.training.model.step import StudentStep
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import full_tensors

logger = logging.getLogger(__name__)

_PROBE_TOLERANCE = 1e-2


class Student:
    """A model under training, with the same interface whether all of it or an adapter is trained.

    Args:
        model: sampled from, and saved at the end: `causal_lm`, or peft's wrapper of it.
        causal_lm: the causal language model itself; an adapter's layers are inside it.
        tokenizer: with the chat template.
        base_ref: model ref of the weights that training started from, below any adapter.
        dtype: type of computation.

    Raises:
        TrainingError: the model's logits are not its output layer applied to its hidden states.
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
        self.step = StudentStep(model, causal_lm)
        """From a microbatch to the loss; under sharding the only way to the weights."""
        self.dtype = dtype
        self._check_head()

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def head(self) -> nn.Linear:
        return self.step.head

    def precision(self) -> AbstractContextManager[Any]:
        """The autocast context in which the model computes, in training and sampling."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Trained parameters by name; tied weights come once."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def save(self, folder: Path, ranks: Ranks) -> None:
        """The first rank writes weights or adapter, tokenizer and chat template: a folder that is a model ref."""
        is_full = self.model is self.causal_lm
        weights = None
        if ranks.size > 1:
            # All weights of a full student, the trained ones of an adapter; tied weights come once.
            saved = dict(self.model.named_parameters() if is_full else self.trained_parameters())
            names = saved.keys() | (dict(self.model.named_buffers()).keys() if is_full else ())
            state = {name: value for name, value in self.model.state_dict().items() if name in names}
            weights = full_tensors(state, ranks)
        if not ranks.is_first:
            return
        if is_full:
            self.causal_lm.save_pretrained(folder, state_dict=weights)
        else:
            # Otherwise peft looks the base model up on the hub, to see whether its vocabulary grew.
            self.model.save_pretrained(folder, save_embedding_layers=False, state_dict=weights)
        self.tokenizer.save_pretrained(folder)

    def packs_exactly(self) -> bool:
        """Whether samples in a packed row do not affect each other; a warning gives the reason if they do."""
        with self.precision():
            return packs_exactly(self.causal_lm)

    @torch.no_grad()
    def _check_head(self) -> None:
        inputs = torch.tensor([[0, 1, 2]], device=self.device)
        with self.precision():
            expected = self.causal_lm(input_ids=inputs, use_cache=False).logits.float()
            seen = self.step.head(self.step.backbone(input_ids=inputs, use_cache=False).last_hidden_state).float()
        difference = (seen - expected).abs().max().item()
        if not difference <= _PROBE_TOLERANCE * max(1.0, expected.abs().max().item()):
            raise TrainingError(
                f"model {self.base_ref!r} ({type(self.causal_lm).__name__}): its logits differ by {difference:.3g} "
                "from its output layer applied to its hidden states; models that scale or cap their logits cannot "
                "be trained"
            )
