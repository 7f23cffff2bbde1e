"""Forward passes of a frozen causal language model over packed rows.

Dimensions: N scored tokens, C those of a chunk, R hidden size, V vocabulary, K most probable tokens.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.serving.score import LogitScaling
from stillhouse.training.head.fused import chunk_tokens
from stillhouse.training.head.softmax import wide
from stillhouse.training.model.backbone import backbone_of
from stillhouse.training.model.microbatches import collate, microbatch_groups
from stillhouse.training.model.packing import states_before_targets
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.types import Sample

_LOGITS_ELEMENTS: Final = 1 << 26
"""Logits held at once: 256 MiB in float32."""


class PackedModel:
    """Scores tokens in packed rows if the model supports them. Call it in its precision and without gradients.

    Args:
        causal_lm: the model.
        device: where it computes.
        packing: whether attention keeps the sequences of a row apart.
        name: of the teacher, for errors.
    """

    def __init__(self, causal_lm: PreTrainedModel, device: torch.device, *, packing: bool, name: str) -> None:
        self.max_context: int | None = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
        """Longest input in tokens; None if unbounded."""
        self._name = name
        self._backbone = backbone_of(causal_lm)
        self._device = device
        self._packing = packing
        self.head: nn.Linear = causal_lm.get_output_embeddings()
        self.scaling = LogitScaling.of(causal_lm)

    @property
    def num_rows(self) -> int:
        """Rows of the output layer."""
        return len(self.head.weight)

    def hidden_states(self, views: Sequence[TeacherView]) -> tuple[Tensor, Tensor]:
        """Last hidden states [N, R] that predict the scored tokens, views concatenated, and those tokens [N].

        Raises:
            TrainingError: a view exceeds the model's context, or has a token id outside its vocabulary.
        """
        self._check(views)
        return self._hidden_states([_sample(view) for view in views])

    def scores(
        self, views: Sequence[TeacherView], temperature: float, max_tokens: int, top_k: int = 0
    ) -> list[SequenceScores]:
        """Scores of the scored tokens of each view under softmax(logits / temperature).

        Args:
            views: the input.
            temperature: divides the logits.
            max_tokens: limit of one forward pass; a longer view gets its own.
            top_k: most probable tokens to give at each; 0 gives none.

        Raises:
            TrainingError: as for `hidden_states`.
        """
        self._check(views)
        answers = [SequenceScores([]) for _ in views]
        samples = [_sample(view) for view in views]
        places = {id(sample): place for place, sample in enumerate(samples)}
        for group in microbatch_groups(samples, max_tokens, packing=self._packing):
            scores = self._target_scores(*self._hidden_states(group), temperature, top_k)
            first = 0
            for sample in group:
                last = first + sum(sample.loss_mask)
                answers[places[id(sample)]] = scores.part(first, last)
                first = last
        return answers

    def _hidden_states(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        microbatch = collate(samples, lambda _: {}, self._device, packing=self._packing)
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

    def _check(self, views: Sequence[TeacherView]) -> None:
        longest = max((len(view.token_ids) for view in views), default=0)
        if self.max_context is not None and longest > self.max_context:
            raise TrainingError(
                f"teacher {self._name!r} has {longest} tokens to read and positions for {self.max_context}; lower "
                "on_policy.max_tokens or max_turns, or shorten its hint"
            )
        largest = max((max(view.token_ids) for view in views), default=0)
        if largest >= self.num_rows:
            raise TrainingError(
                f"teacher {self._name!r} has {self.num_rows} tokens and cannot score token id {largest}: the student's "
                "embedding has more rows than its tokenizer has tokens, and one of them was sampled. Use a teacher "
                "of as many rows, or train the student by SFT first, which makes such tokens improbable"
            )


def _sample(view: TeacherView) -> Sample:
    return Sample(view.token_ids, view.loss_mask, prompt_id="")
