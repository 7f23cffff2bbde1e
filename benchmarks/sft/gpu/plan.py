"""What is trained on a GPU, and what a training finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from benchmarks.json_file import JsonFile
from benchmarks.sft.workload import SHAPES, Shape
from stillhouse.types import Sample

Side = Literal["ours", "trl"]
Variant = Literal["plain", "compiled", "packed"]

_MEDIAN_TOKENS: Final = 550
_SIGMA: Final = 0.6
_MIN_TOKENS: Final = 64
_MAX_TOKENS: Final = 4096
_SPAN_TOKENS: Final = 40
LORA_RANK: Final = 32


@dataclass(frozen=True, slots=True)
class Size:
    """A model and how it is trained, in bfloat16 either way."""

    shape: Shape
    parameters: Literal["full", "lora"]
    batch_size: int = 24
    """Rows of an optimiser step, some 16,000 tokens."""
    microbatch_tokens: int = 1 << 15
    """Most tokens that our trainer takes through the model at once: here the whole step."""
    microbatch_rows: int = 4
    """Rows that TRL takes through the model at once."""


SIZES: Final = {
    "tiny": Size(SHAPES["tiny"], "full", batch_size=4),
    "tiny-lora": Size(SHAPES["tiny"], "lora", batch_size=4),
    "0.6B": Size(Shape(1024, 28, 16, 8, 3072, 151_936), "full"),
    "1.7B": Size(Shape(2048, 28, 16, 8, 6144, 151_936), "full"),
    "8B": Size(
        Shape(4096, 36, 32, 8, 12288, 151_936, tied=False), "lora", microbatch_tokens=1 << 13, microbatch_rows=2
    ),
}


@dataclass(frozen=True, slots=True)
class GpuJob(JsonFile):
    """One training of one side, in a process of its own."""

    size: str
    side: Side
    variant: Variant
    device: str
    num_warm_ups: int = 3
    num_steps: int = 8
    """Timed, after the warm-ups."""

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.size} {self.side} {self.variant}"

    def batches(self) -> list[list[Sample]]:
        """The rows of each step, the same for both sides."""
        size = SIZES[self.size]
        generator = np.random.default_rng(0)
        return [
            _batch(generator, size.batch_size, size.shape.vocabulary) for _ in range(self.num_warm_ups + self.num_steps)
        ]


@dataclass(frozen=True, slots=True)
class GpuFound(JsonFile):
    """What one training found."""

    tokens_per_s: float
    """Median of the timed steps; padding is left out."""
    s_per_step: float
    """Median of the timed steps."""
    mfu: float
    """Operations the model asks for, none counted twice, over those the device can do."""
    peak_tflops: float
    """Of large matrix products, measured."""
    peak_memory_gib: float
    losses: list[float]
    """Of every step, warm-ups included."""


def num_tokens(batches: Sequence[Sequence[Sample]]) -> int:
    """Of all rows."""
    return sum(len(sample.token_ids) for batch in batches for sample in batch)


def _batch(generator: np.random.Generator, batch_size: int, vocabulary: int) -> list[Sample]:
    """Rows of log-normal length, in spans that are learnt and spans that are not; sorted, so that padding is little."""
    lengths = generator.lognormal(np.log(_MEDIAN_TOKENS), _SIGMA, batch_size).clip(_MIN_TOKENS, _MAX_TOKENS)
    return [
        Sample(
            token_ids=generator.integers(vocabulary, size=length).tolist(),
            loss_mask=[bool(place // _SPAN_TOKENS % 2) for place in range(length)],
            prompt_id=f"row-{number}",
        )
        for number, length in enumerate(sorted(lengths.astype(int)))
    ]
