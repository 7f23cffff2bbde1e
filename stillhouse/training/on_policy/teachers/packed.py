"""Teachers in this process: forward passes of a causal language model over packed rows.

Dimensions: N scored tokens, C those of a chunk, R hidden size, V vocabulary, K most probable tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.serving.score import LogitScaling
from stillhouse.training.head.fused import chunk_tokens
from stillhouse.training.head.softmax import wide
from stillhouse.training.model.microbatches import collate, idle_microbatch, microbatch_groups
from stillhouse.training.model.packing import backbone_of, states_before_targets
from stillhouse.training.on_policy.teachers.teacher import Alignment, aligned
from stillhouse.training.ranks import Ranks
from stillhouse.types import Sample

_LOGITS_ELEMENTS: Final = 1 << 26
"""Logits held at once: 256 MiB in float32."""


@dataclass(frozen=True, slots=True)
class ScoringSettings:
    """How a teacher in this process scores."""

    name: str
    kl_coef: float
    temperature: float
    batch_tokens: int
    """Most tokens of one forward pass; a longer input gets its own."""
    top_k: int = 0
    """Most probable tokens to give beside the scored ones."""


class PackedModel:
    """Scores tokens in packed rows if attention keeps the sequences of a row apart (`packing`).

    Call it in its precision and without gradients. Where `ranks` share its blocks, each of them calls it as often as
    the others do, also without views.
    """

    def __init__(
        self, causal_lm: PreTrainedModel, device: torch.device, *, packing: bool, name: str, ranks: Ranks | None = None
    ) -> None:
        self.max_context: int | None = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
        """Longest input in tokens; None if unbounded."""
        self._name = name
        self._backbone = backbone_of(causal_lm)
        self._device = device
        self._packing = packing
        self._ranks = ranks or Ranks.single(device)
        self.head: nn.Linear = causal_lm.get_output_embeddings()
        self.scaling = LogitScaling.of(causal_lm)

    @property
    def num_rows(self) -> int:
        """Return the number of rows of the output layer."""
        return len(self.head.weight)

    def hidden_states(self, views: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Return the last hidden states [N, R] that predict the views' scored tokens, and those tokens [N].

        Raises:
            TrainingError: a view exceeds the model's context, or has a token id outside its vocabulary.
        """
        self._check(views)
        return self._hidden_states(views)

    def scores(self, views: Sequence[Sample], settings: ScoringSettings) -> list[SequenceScores]:
        """Return the scores of each view's tokens under softmax(logits / temperature); raises as `hidden_states`."""
        self._check(views)
        answers: dict[int, SequenceScores] = {}
        groups = microbatch_groups(views, settings.batch_tokens, packing=self._packing)
        for group in groups:
            scores = self._target_scores(*self._hidden_states(group), settings.temperature, settings.top_k)
            first = 0
            for view in group:
                last = first + int(np.count_nonzero(view.loss_mask))
                answers[id(view)] = scores.part(first, last)
                first = last
        _, most = self._ranks.sum_and_max({}, {"groups": float(len(groups))})
        for _ in range(int(most["groups"]) - len(groups)):
            self._hidden_states(())
        return [answers.get(id(view), SequenceScores([])) for view in views]

    def _hidden_states(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        if samples:
            microbatch = collate(samples, lambda _: {}, self._device, packing=self._packing)
        else:
            microbatch = idle_microbatch((), self._device, packing=self._packing)
        return states_before_targets(self._backbone, microbatch), microbatch.targets_N

    def _target_scores(self, hidden_NR: Tensor, targets_N: Tensor, temperature: float, top_k: int) -> SequenceScores:
        size = chunk_tokens(len(targets_N), self.num_rows, self._device.type, _LOGITS_ELEMENTS)
        logprobs, ids, best = [], [], []
        for hidden_CR, targets_C in zip(hidden_NR.split(size), targets_N.split(size), strict=True):
            logits_CV = self.head(hidden_CR)
            logits_CV = self.scaling.apply_(logits_CV.to(wide(logits_CV.dtype)))
            if temperature != 1.0:  # a pass over all logits otherwise
                logits_CV.div_(temperature)
            normalisers_C = logits_CV.logsumexp(dim=-1)
            logprobs.append(logits_CV.gather(1, targets_C[:, None]).squeeze(1) - normalisers_C)
            if top_k:
                top = logits_CV.topk(min(top_k, self.num_rows), dim=-1)
                ids.append(top.indices)
                best.append(top.values - normalisers_C[:, None])
        top_NK = TopLogprobs.rounded(torch.cat(ids).cpu().numpy(), torch.cat(best).cpu().numpy()) if top_k else None
        return SequenceScores(torch.cat(logprobs).tolist(), top_NK)

    def _check(self, views: Sequence[Sample]) -> None:
        longest = max((len(view.token_ids) for view in views), default=0)
        if self.max_context is not None and longest > self.max_context:
            raise TrainingError(
                f"teacher {self._name!r} has {longest} tokens to read and positions for {self.max_context}; lower "
                "on_policy.max_tokens or max_turns, or shorten its hint"
            )
        largest = max((int(np.max(view.token_ids)) for view in views), default=0)
        if largest >= self.num_rows:
            raise TrainingError(
                f"teacher {self._name!r} has {self.num_rows} tokens and cannot score token id {largest}: the student's "
                "embedding has more rows than its tokenizer has tokens, and one of them was sampled. Use a teacher "
                "of as many rows, or train the student by SFT first, which makes such tokens improbable"
            )


class PackedTeacher(ABC):
    """A teacher in this process; see `Teacher`. Its scores are there when `start` returns."""

    def __init__(self, settings: ScoringSettings, packed: PackedModel, alignment: Alignment | None = None) -> None:
        self.name, self.kl_coef, self.max_context = settings.name, settings.kl_coef, packed.max_context
        self._settings, self._packed, self._alignment = settings, packed, alignment

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """Bring the model into the state in which the teacher reads."""

    def start(self, requests: Sequence[Sample]) -> Future[list[SequenceScores]]:
        with self._reading():
            scores = self._packed.scores([request.read for request in requests], self._settings)
        return finished(aligned(requests, scores, self._alignment))

    def close(self) -> None:  # noqa: B027
        """Do nothing: no request is in progress between calls."""


def finished(answers: list[SequenceScores]) -> Future[list[SequenceScores]]:
    """Return a future that has its result."""
    future: Future[list[SequenceScores]] = Future()
    future.set_result(answers)
    return future
