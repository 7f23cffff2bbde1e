"""Log-probabilities of given tokens: how a teacher scores what a student sampled.

Dimensions: B sequences, T tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOGITS_ELEMENTS: Final = 1 << 26
"""Most logits held at once (256 MiB in float32); the head runs on chunks of positions."""


def score_tokens(
    model: "PreTrainedModel",
    sequences: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    microbatch_tokens: int = 16384,
) -> list[list[float]]:
    """Log-probability of every token after the tokens before it.

        out[i][j] = log softmax(logits / temperature)[sequences[i][j]],   out[i][0] = 0.0

    Args:
        model: In evaluation mode; no gradient is kept.
        sequences: Token ids; lengths may differ.
        temperature: Divides the logits; not 0.
        microbatch_tokens: Most tokens of one forward pass, padding included; a longer sequence is a pass of its own.
    """
    scores: list[list[float]] = [[0.0] * len(sequence) for sequence in sequences]
    for indices in _microbatches([len(sequence) for sequence in sequences], microbatch_tokens):
        logprobs = _score_batch(model, [sequences[index] for index in indices], temperature)
        for index, row in zip(indices, logprobs.tolist(), strict=True):
            scores[index][1:] = row[: len(sequences[index]) - 1]
    return scores


def _microbatches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of sequences of two or more tokens, grouped by similar length so that little is padding."""
    batch: list[int] = []
    for index in sorted((i for i, length in enumerate(lengths) if length > 1), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@torch.inference_mode()
def _score_batch(model: "PreTrainedModel", sequences: Sequence[Sequence[int]], temperature: float) -> torch.Tensor:
    """Log-probabilities [B, T - 1] of tokens 1..T-1, meaningless behind a sequence's end (right padding)."""
    width = max(len(sequence) for sequence in sequences)
    tokens_BT = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences])
    tokens_BT = tokens_BT.to(model.device)
    targets = tokens_BT[:, 1:]
    # Causal attention: no token sees the padding behind it, so no mask is needed.
    hidden = model.get_decoder()(input_ids=tokens_BT, use_cache=False).last_hidden_state
    chunk = max(1, _LOGITS_ELEMENTS // (len(sequences) * model.config.get_text_config().vocab_size))
    pieces = []
    for start in range(0, width - 1, chunk):
        logits = _head(model, hidden[:, start : min(start + chunk, width - 1)]) / temperature
        chosen = logits.gather(-1, targets[:, start : start + chunk, None]).squeeze(-1)
        pieces.append(chosen - logits.logsumexp(-1))
    return torch.cat(pieces, dim=1)


def _head(model: "PreTrainedModel", hidden: torch.Tensor) -> torch.Tensor:
    """Logits in float32 of hidden states, as the model's own forward pass makes them.

    Calling the head apart from the body is what allows chunks; the scalings that some families put behind it are
    applied here (Cohere's factor, Granite's divisor, Gemma's soft cap).
    """
    config = model.config.get_text_config()
    logits = model.get_output_embeddings()(hidden).float()
    logits = logits * getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)
