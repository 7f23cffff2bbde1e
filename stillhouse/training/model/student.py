"""The student: a causal language model of which all weights or an adapter are trained."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.attention import use_attention
from stillhouse.chat.refs import GENERATION_FILE
from stillhouse.errors import TrainingError
from stillhouse.serving.score import LogitScaling
from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.scores import Reference, TokenLoss, TopReference
from stillhouse.training.model.microbatches import Microbatch
from stillhouse.training.model.packing import backbone_of, packs_exactly, states_before_targets
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import full_tensors

_PROBE_TOLERANCE = 1e-2
_ROUNDING = 1e-4
_OTHER_HEADS = ("summary_", "classifier_")
"""Beginnings of settings that are not the language model's, such as GPT-2's `summary_first_dropout`."""
_PROBE_LOGITS = 100.0
"""Largest output of the output layer in the probe: beyond the caps of published models, most of which are 30."""


class Student:
    """A model under training, with the same interface whether all of it or an adapter is trained.

    `model`, which is saved at the end, is `causal_lm` or peft's wrapper of it, `base_ref` the model ref of the weights
    that training started from, below any adapter, and `dtype` the type of computation.

    Raises:
        TrainingError: the model is not causal; or its logits are not its output layer applied to its hidden states,
            scaled and capped as its config says.
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
        self.causal_lm = use_attention(causal_lm)
        self.tokenizer = tokenizer
        self.base_ref = base_ref
        self.step = StudentStep(model, causal_lm)
        """From a microbatch to the loss; under sharding the only way to the weights."""
        self.dtype = dtype
        self._packs_exactly: bool | None = None
        try:
            self._check_head()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise TrainingError(
                f"{self._name}: a forward pass of three tokens fails, so that it cannot be trained here: "
                f"{type(error).__name__}: {error}"
            ) from error

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def head(self) -> nn.Linear:
        return self.step.head

    @property
    def max_context(self) -> int | None:
        """Return the number of its positions; None where a family has no such limit (state-space models)."""
        return getattr(self.causal_lm.config.get_text_config(), "max_position_embeddings", None)

    def precision(self) -> AbstractContextManager[Any]:
        """Return the autocast context in which the model computes, in training and sampling."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Have the model compute in its precision without dropout or gradient inside the block."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self.precision():
                yield
        finally:
            self.model.train(was_training)

    def dropout_rates(self) -> dict[str, float]:
        """Return the dropout of the model's config and of its adapter by name, where it is above 0."""
        settings = self.causal_lm.config.get_text_config().to_dict()
        if self.model is not self.causal_lm:
            settings |= self.model.peft_config["default"].to_dict()
        return {
            name: rate
            for name, rate in settings.items()
            if "drop" in name and not name.startswith(_OTHER_HEADS) and isinstance(rate, float) and rate > 0
        }

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trained parameters by name; tied weights come once."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def save(self, folder: Path, ranks: Ranks) -> None:
        """Have the first rank write weights or adapter, tokenizer and chat template: a folder that is a model ref."""
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
            (folder / GENERATION_FILE).write_text(self.causal_lm.generation_config.to_json_string())
        self.tokenizer.save_pretrained(folder)

    def packs_exactly(self) -> bool:
        """Return whether samples in a packed row do not affect each other; warn with the reason if they do."""
        if self._packs_exactly is None:
            with self.precision():
                self._packs_exactly = packs_exactly(self.causal_lm)
        return self._packs_exactly

    @property
    def _name(self) -> str:
        return f"model {self.base_ref!r} ({type(self.causal_lm).__name__})"

    @torch.no_grad()
    def _check_head(self) -> None:
        # Some families attend to no padding token, wherever it stands.
        padding = getattr(self.causal_lm.config.get_text_config(), "pad_token_id", None)
        a, b, c, d = [token for token in range(5) if token != padding][:4]
        inputs, other_end = torch.tensor([[[a, b, c]], [[a, b, d]]], device=self.device)
        with self.precision():
            products, others = (
                self.head(self.step.backbone(input_ids=ids, use_cache=False).last_hidden_state)
                for ids in (inputs, other_end)
            )
            rounding = _ROUNDING if products.dtype is torch.float32 else _PROBE_TOLERANCE
            if not (products - others)[:, :-1].abs().max() <= rounding * products.abs().max():
                raise TrainingError(
                    f"{self._name}: the logits of a token depend on the tokens after it, so that it cannot be trained "
                    "here; take a causal model"
                )
            # Small logits do not show a cap, and capped ones no factor.
            for size in (1.0, _PROBE_LOGITS / products.abs().max().clamp(min=1e-6)):
                hook = self.head.register_forward_hook(lambda head, inputs, output, size=size: output * size)
                try:
                    expected = self.causal_lm(input_ids=inputs, use_cache=False).logits.float()
                finally:
                    hook.remove()
                self._compare_logits(self.step.scaling.apply_((products * size).float()), expected)

    def _compare_logits(self, seen: Tensor, expected: Tensor) -> None:
        name, scaling = self._name, self.step.scaling
        if seen.shape != expected.shape:
            raise TrainingError(
                f"{name}: it has {expected.shape[-1]} logits a token and {seen.shape[-1]} rows in its output layer, so "
                "that it cannot be trained here"
            )
        difference, largest = (seen - expected).abs().max().item(), expected.abs().max().item()
        if not difference <= _PROBE_TOLERANCE * largest:
            raise TrainingError(
                f"{name}: its logits differ by {difference:.3g} (the largest is {largest:.3g}) from its output layer "
                f"applied to its hidden states with the factor {scaling.factor:.3g} and the cap {scaling.cap} of its "
                "config; it does something else to its logits, so that it cannot be trained here"
            )


class StudentStep(nn.Module):
    """From a microbatch to a method's loss as one module, since FSDP hooks into the calls of modules."""

    def __init__(self, model: nn.Module, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        # In a tuple, so that they are not registered: they are part of `model`.
        self._parts: tuple[Any, nn.Linear] = (backbone_of(causal_lm), causal_lm.get_output_embeddings())
        self.scaling = LogitScaling.of(causal_lm)
        self.compiles_head = False
        """True if the head uses compiled kernels."""

    @property
    def backbone(self) -> Any:
        return self._parts[0]

    @property
    def head(self) -> nn.Linear:
        return self._parts[1]

    def forward(
        self, microbatch: Microbatch, method: TokenLoss, scale: float, reference: Reference | TopReference | None = None
    ) -> LossSums:
        """Return `scale` times the sum of the losses at the microbatch's targets, and sums of the metrics.

        `reference` holds the teacher's hidden states at these targets; None compares with no teacher.
        """
        return fused_loss(
            states_before_targets(self.backbone, microbatch),
            self.head,
            microbatch.targets_N,
            microbatch.values,
            method.loss,
            scale=scale,
            temperature=method.temperature,
            divergence_temperature=method.divergence_temperature,
            wants_entropy=method.wants_entropy,
            divergence=method.divergence,
            reference=reference,
            scaling=self.scaling,
            compiled=self.compiles_head,
        )
