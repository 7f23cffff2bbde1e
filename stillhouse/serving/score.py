"""Log-probabilities of given tokens, as a teacher scores what a student sampled.

Dimensions: B sequences, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_LOGITS_ELEMENTS: Final = 1 << 26
"""Most logits held at once (256 MiB in float32); the head runs on chunks of positions."""
_PASS_TOKENS: Final = 4096
"""Of one forward pass: enough to keep a GPU busy. Sequences are sorted, so that smaller passes have less padding."""

_FACTORS: Final = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Fields of configs for what logits are multiplied by: Cohere, Falcon-H1, Muse."""
_DIVISORS: Final = ("logits_scaling", "logits_mup_width_multiplier")
"""For what they are divided by: Granite, Inkling."""
_CAPS: Final = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""For their soft cap: Gemma and NanoChat, RecurrentGemma, xLSTM."""


class LogitScaling(NamedTuple):
    """A factor on the logits, and then a soft cap: cap * tanh(factor * logits / cap)."""

    factor: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: "PreTrainedModel") -> Self:
        """Return the scaling of the model's own forward pass."""
        config = model.config.get_text_config()
        # HyperCLOVA X multiplies by what Granite divides by.
        multiplies = "hyperclovax" in config.model_type
        factors, divisors = (_FACTORS + _DIVISORS, ()) if multiplies else (_FACTORS, _DIVISORS)
        caps = _values(config, _CAPS)
        factor = math.prod(_values(config, factors)) / math.prod(_values(config, divisors))
        return cls(factor, caps[0] if caps else None)

    def apply_(self, logits: torch.Tensor) -> torch.Tensor:
        """Scale logits of any shape in place, and return them."""
        if self.factor != 1.0:
            logits *= self.factor
        if self.cap is not None:
            logits.div_(self.cap).tanh_().mul_(self.cap)
        return logits


UNSCALED: Final = LogitScaling()


def _values(config: "PreTrainedConfig", names: Sequence[str]) -> list[float]:
    return [value for name in names if (value := getattr(config, name, None)) is not None]


class RankedToken(NamedTuple):
    """Log-probability, rank and alternatives of one given token."""

    logprob: float
    rank: int
    """1 for the most likely token."""
    top: list[tuple[int, float]]
    """The most likely tokens and their log-probabilities, best first."""


@torch.inference_mode()
def score_tokens(
    model: "PreTrainedModel",
    sequences: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    microbatch_tokens: int = _PASS_TOKENS,
) -> list[list[float]]:
    """Return the log-probability of every token after the tokens before it.

        out[i][j] = log softmax(logits / temperature)[sequences[i][j]],   out[i][0] = 0.0

    Sequences may differ in length. A forward pass has at most `microbatch_tokens` tokens, padding included; a longer
    sequence is one pass.
    """
    scores: list[list[float]] = [[0.0] * len(sequence) for sequence in sequences]
    for indices in _microbatches([len(sequence) for sequence in sequences], microbatch_tokens):
        chunks = _logit_chunks(model, [sequences[index] for index in indices], temperature)
        pieces = [_chosen(logits, targets) - logits.logsumexp(-1) for logits, targets in chunks]
        for index, row in zip(indices, torch.cat(pieces, dim=1).tolist(), strict=True):
            scores[index][1:] = row[: len(sequences[index]) - 1]
    return scores


@torch.inference_mode()
def rank_tokens(
    model: "PreTrainedModel",
    sequences: Sequence[Sequence[int]],
    num_top: int,
    *,
    temperature: float = 1.0,
    microbatch_tokens: int = _PASS_TOKENS,
) -> list[list[RankedToken]]:
    """Return the log-probability, rank and the `num_top` best alternatives of tokens 1, 2, ... of each sequence.

    One entry fewer than tokens: the first token has no context.
    """
    entries: list[list[RankedToken]] = [[] for _ in sequences]
    for indices in _microbatches([len(sequence) for sequence in sequences], microbatch_tokens):
        for logits, targets in _logit_chunks(model, [sequences[index] for index in indices], temperature):
            for index, row in zip(indices, ranked(logits, targets, num_top), strict=True):
                entries[index].extend(row)
    return [row[: max(len(sequence) - 1, 0)] for row, sequence in zip(entries, sequences, strict=True)]


def ranked(logits_BTV: torch.Tensor, targets_BT: torch.Tensor, num_top: int) -> list[list[RankedToken]]:
    """Return the entry of each target."""
    normaliser = logits_BTV.logsumexp(-1)
    chosen = _chosen(logits_BTV, targets_BT)
    ranks = (logits_BTV > chosen.unsqueeze(-1)).sum(-1) + 1
    top = logits_BTV.topk(min(num_top, logits_BTV.shape[-1]), dim=-1)
    columns = (chosen - normaliser, ranks, top.indices, top.values - normaliser.unsqueeze(-1))
    return [
        [
            RankedToken(logprob, rank, list(zip(ids, values, strict=True)))
            for logprob, rank, ids, values in zip(*row, strict=True)
        ]
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _microbatches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of sequences of two or more tokens, grouped by length to save padding."""
    batch: list[int] = []
    for index in sorted((i for i, length in enumerate(lengths) if length > 1), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _logit_chunks(
    model: "PreTrainedModel", sequences: Sequence[Sequence[int]], temperature: float
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield logits / temperature [B, t, V] and target tokens [B, t] of successive chunks of t positions.

    Sequences are padded on the right; entries beyond the end of a sequence are meaningless.
    """
    width = max(len(sequence) for sequence in sequences)
    tokens_BT = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences])
    tokens_BT = tokens_BT.to(model.device)
    # Causal attention: no token sees the padding behind it, so no mask is needed.
    hidden = model.get_decoder()(input_ids=tokens_BT, use_cache=False).last_hidden_state
    chunk = max(1, _LOGITS_ELEMENTS // (len(sequences) * model.config.get_text_config().vocab_size))
    for start in range(0, width - 1, chunk):
        end = min(start + chunk, width - 1)
        # As one matrix: on a CPU a batch of them takes three times as long.
        logits = model.get_output_embeddings()(hidden[:, start:end].flatten(0, 1))
        # In float32, as the model's own forward pass computes logits.
        logits = LogitScaling.of(model).apply_(logits.float()).unflatten(0, (len(sequences), end - start))
        yield logits if temperature == 1.0 else logits / temperature, tokens_BT[:, start + 1 : end + 1]


def _chosen(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
