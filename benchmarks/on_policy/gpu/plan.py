"""What is distilled on a GPU, and what a training finds."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from benchmarks.json_file import JsonFile
from benchmarks.on_policy.workload import Lengths, Pair, prompts, twice_as_wide
from benchmarks.sft.gpu.plan import SIZES as SFT_SIZES
from benchmarks.sft.workload import SHAPES
from stillhouse.training.batching.order import distinct_rows

Side = Literal["ours", "trl", "replay"]
"""`replay` is ours on what TRL sampled, whose losses are to be TRL's."""

LORA_RANK: Final = 32


@dataclass(frozen=True, slots=True)
class Size:
    """A student and its teacher, and how the student is trained, in bfloat16 either way."""

    pair: Pair
    parameters: Literal["full", "lora"]
    batch_size: int = 128
    """Completions of an optimiser step."""
    microbatch_tokens: int = 1 << 15
    """Most tokens that our trainer takes through the models at once."""
    microbatch_rows: int = 16
    """Rows that TRL takes through the models at once."""
    lengths: Lengths = Lengths(  # noqa: RUF009 - frozen
        prompt=128, prompt_bounds=(16, 512), completion=256, completion_bounds=(16, 1024)
    )


_TINY: Final = Pair(SHAPES["tiny"], twice_as_wide(SHAPES["tiny"]))
SIZES: Final = {
    "tiny": Size(_TINY, "full", batch_size=4, microbatch_rows=2, lengths=Lengths()),
    "tiny-lora": Size(_TINY, "lora", batch_size=4, microbatch_rows=2, lengths=Lengths()),
    "0.6B": Size(Pair(SFT_SIZES["0.6B"].shape, SFT_SIZES["1.7B"].shape), "full"),
    "1.7B": Size(
        Pair(SFT_SIZES["1.7B"].shape, SFT_SIZES["8B"].shape), "lora", microbatch_tokens=1 << 14, microbatch_rows=8
    ),
}
"""By the student. At 1.7B with an 8B teacher: weights 20 GB, keys and values of 128 sequences of at most 1,600 tokens
24 GB, activations of 16,000 tokens some 40 GB, of 139 GiB."""


@dataclass(frozen=True, slots=True)
class GpuJob(JsonFile):
    """One training of one side, in a process of its own."""

    size: str
    side: Side
    device: str
    num_steps: int = 3
    """The first of them warms up."""

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.size} {self.side}"

    def rows(self) -> list[dict[str, Any]]:
        """The prompts of the whole training."""
        size = SIZES[self.size]
        count = self.num_steps * size.batch_size
        return list(prompts(count, size.pair.student.vocabulary, seed=0, lengths=size.lengths))

    def ordered(self) -> list[Any]:
        """Their messages in the order in which our method takes them."""
        rows, batch_size = self.rows(), SIZES[self.size].batch_size
        places = [distinct_rows(step, batch_size, len(rows), seed=0) for step in range(self.num_steps)]
        return [rows[place]["messages"] for step in places for place in step]


@dataclass(frozen=True, slots=True)
class GpuFound(JsonFile):
    """What one training found."""

    s_per_step: float
    """Mean of the timed steps."""
    tokens_per_s: float
    """Sampled, likewise."""
    peak_memory_gib: float
    split: dict[str, float]
    """Seconds of a step by `WORKS`, the median of the timed ones."""
    floor: dict[str, float]
    """The least seconds for what was sampled, likewise."""
    losses: list[float]
    """Of every step."""
