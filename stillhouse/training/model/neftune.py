"""Noise on the embeddings, which keeps fine-tuning on few conversations from learning their wording (NEFTune)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stillhouse.training.loop.batching.microbatches import Microbatch


@contextmanager
def embedding_noise(embedding: nn.Module, alpha: float, microbatch: Microbatch) -> Iterator[None]:
    """Adds noise to what `embedding` returns for `microbatch` while the context lasts, in training mode only.

    Each element gets a draw from the uniform distribution between -s and s with s = alpha / sqrt(L H), where L is the
    number of tokens of the sample that the element belongs to and H the width of the embedding (arXiv 2310.05914,
    algorithm 1). It is drawn from torch's generator of the device, so a training continued with the generator's state
    sees the same noise.

    Args:
        embedding: the model's input embedding.
        alpha: size of the noise; the paper uses 5 to 15.
        microbatch: what is embedded, packed or padded.
    """

    def add_noise(module: nn.Module, inputs: Any, embedded_BTH: Tensor) -> Tensor:
        if not module.training:
            return embedded_BTH
        size_BT = alpha * (_sample_lengths(microbatch) * embedded_BTH.shape[-1]).rsqrt()
        noise_BTH = torch.empty_like(embedded_BTH).uniform_(-1.0, 1.0)
        return embedded_BTH + noise_BTH * size_BT[..., None].to(noise_BTH.dtype)

    hook = embedding.register_forward_hook(add_noise)
    try:
        yield
    finally:
        hook.remove()


def _sample_lengths(microbatch: Microbatch) -> Tensor:
    """For each place [B, T] the number of tokens of its sample, without a look at the device's values."""
    num_rows, width = microbatch.inputs_BT.shape
    if microbatch.segments is not None:
        lengths_S = microbatch.segments.starts.diff()
        return lengths_S.repeat_interleave(lengths_S, output_size=width)[None]
    # A row ends where its last target is predicted; one without targets teaches nothing, whatever its length.
    rows_N, places_N = microbatch.target_places_N // width, microbatch.target_places_N % width
    lengths_B = places_N.new_ones(num_rows).scatter_reduce(0, rows_N, places_N + 1, "amax")
    return lengths_B[:, None].expand(num_rows, width)
