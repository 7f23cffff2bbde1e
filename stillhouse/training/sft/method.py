"""Supervised fine-tuning on the teacher's conversations.

A batch is the next samples of the mixture. The loss is the cross-entropy of the assistant's tokens: text, reasoning and
tool calls with their end-of-turn token, but not prompts and tool output; or the KL from what a teacher finds probable
at each of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from stillhouse.config import Divergence, SftConfig
from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.training.head.scores import TokenLosses, TokenScores, TopReference
from stillhouse.training.loop.method import Batch, Method
from stillhouse.training.loop.row_order import Mixture
from stillhouse.training.losses import cross_entropy, soft_targets
from stillhouse.training.model.token_bytes import token_bytes
from stillhouse.training.ranks import Ranks
from stillhouse.training.sft.render import Rendering
from stillhouse.training.sft.sources import all_sources
from stillhouse.training.sft.tokens import load_data
from stillhouse.types import JsonObject, Sample

_LEFT_OUT: Final = ("rejected", "truncated", "dropped", "unlearnt")


@dataclass(eq=False)
class Sft(Method):
    """The method `sft`: learns from `train` in `order`, source by source, and measures on `validation`."""

    name = "sft"
    headline = ("loss", "token_accuracy")
    guarded = "nll"
    temperature = 1.0

    train: Sequence[Sample]
    validation: Sequence[Sample]
    order: Mixture
    token_bytes: Sequence[int]
    """Bytes of text of each token id."""
    config: SftConfig
    facts: JsonObject
    """Counts of rows that were truncated or dropped."""
    soft_targets: ScoreLedger | None = None
    """Scores that a teacher gave each sample, in the ledger of the stage `scores`."""

    def __post_init__(self) -> None:
        self.num_steps = self.order.num_steps
        self._bytes_V = torch.tensor(self.token_bytes, dtype=torch.float32)
        self.uses_dropout = self.soft_targets is None
        self.divergence = () if self.soft_targets is None else (Divergence(kind="forward_kl"),)
        self.divergence_temperature = self.config.soft_temperature

    def batch(self, step: int) -> Batch:
        """Return the samples of `step` in the order of their epoch."""
        samples = [self.train[row] for row in self.order.rows(step)]
        return Batch(samples, {"epoch": self.order.epochs_after(step + 1)})

    def reference(self, samples: Sequence[Sample]) -> TopReference | None:
        """Return the teacher of the soft targets, if there are any; raise TrainingError if a sample has no scores."""
        ledger = self.soft_targets
        if ledger is None or not samples:
            return None
        keys = [ledger.key(sample) for sample in samples]
        found = ledger.find(keys)
        scores = []
        for key, sample in zip(keys, samples, strict=True):
            known = found.get(key)
            if known is None or known.top is None:
                raise TrainingError(
                    f"prompt {sample.prompt_id}: the teacher's scores of its {len(sample.token_ids)} tokens are not in "
                    f"{ledger.folder}, or are damaged. Run the same command with runtime.refresh: [scores]"
                )
            scores.append(known)
        return TopReference.of(scores)

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """Return the configured loss with nll, token_accuracy, bits_per_byte and, of soft targets, forward_kl.

        bits_per_byte is the negative log-likelihood in bits over the bytes of the targets' text, which can be compared
        between tokenizers.
        """
        config = self.config
        soft: dict[str, Tensor] = {}
        if scores.divergence_N is not None:
            losses_N = soft_targets(
                cross_entropy(scores.logprobs_N),
                scores.divergence_N,
                hard_weight=config.hard_weight,
                temperature=config.soft_temperature,
            )
            soft = {"forward_kl": scores.divergence_N.detach()}
        else:
            losses_N = cross_entropy(scores.logprobs_N)
        nll_N = -scores.logprobs_N.detach()
        self._bytes_V = self._bytes_V.to(nll_N.device)
        return TokenLosses(
            losses_N,
            means={"nll": nll_N, "token_accuracy": scores.is_top_N.to(nll_N.dtype), **soft},
            ratios={"bits_per_byte": (nll_N / math.log(2), self._bytes_V[scores.targets_N].to(nll_N.dtype))},
        )


def load_sft(
    dataset_folder: Path | None,
    tokenizer: PreTrainedTokenizerBase,
    config: SftConfig,
    max_length: int,
    *,
    work_dir: Path,
    num_processes: int | None,
    ranks: Ranks,
    scores_folder: Path | None = None,
) -> Sft:
    """Return the method over a dataset artifact, if there is one, and the config's sources; collective.

    `scores_folder` holds the teacher's scores of the rows for the loss `kl`.
    """
    sources = all_sources(dataset_folder, config)
    rendering = Rendering.of(config, max_length)
    data = load_data(sources, tokenizer, rendering, work_dir=work_dir, num_processes=num_processes, ranks=ranks)
    weights = tuple(source.weight for source in sources)
    order = Mixture(data.num_train, weights, config.batch_size, config.num_epochs, config.trainer.seed)
    counts = data.total
    facts: JsonObject = {f"{name}_rows": counts[name] for name in _LEFT_OUT if counts[name]}
    if counts["rejected"]:
        facts["first_rejected"] = "\n  ".join(filter(None, data.problems))
    soft = None if scores_folder is None else ScoreLedger(scores_folder, config.top_k)
    return Sft(data.train, data.validation, order, token_bytes(tokenizer), config, facts, soft)
