"""Time and memory of on-policy distillation, from the sizes of the models.

Everything is a count of operations or bytes over the speed of a device: what cannot be beaten, and what a share of it
takes. The page of the recipe shows the formulas; prices are left to the reader, for they are nobody's constants.
"""

from dataclasses import dataclass
from typing import Final

from stillhouse.report.markdown import table

GIB: Final = 2**30


@dataclass(frozen=True)
class Shape:
    """A dense decoder. Qwen3 technical report, arXiv 2505.09388, table 1, and the configs of its models."""

    name: str
    layers: int
    hidden: int
    query_heads: int
    key_value_heads: int
    ffn: int
    ties_embeddings: bool
    vocabulary: int = 151_936
    head_dim: int = 128

    @property
    def block_parameters(self) -> int:
        """Attention and feed-forward matrices of all layers; norms are left out, being thousands."""
        attention = self.hidden * self.head_dim * 2 * (self.query_heads + self.key_value_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head_parameters(self) -> int:
        """The output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All, the embeddings included."""
        return self.block_parameters + self.head_parameters * (1 if self.ties_embeddings else 2)

    @property
    def cache_bytes_a_token(self) -> int:
        """Keys and values of one token in bfloat16."""
        return self.layers * self.key_value_heads * self.head_dim * 2 * 2

    def forward_flops(self, mean_context: float) -> float:
        """Of one token: two operations a weight it meets, and 4 x context x width a layer for attention."""
        attention = 4 * self.layers * self.query_heads * self.head_dim * mean_context
        return 2 * (self.block_parameters + self.head_parameters) + attention

    def lora_parameters(self, rank: int) -> int:
        """Of an adapter on every linear layer but the output layer."""
        q, kv = self.query_heads * self.head_dim, self.key_value_heads * self.head_dim
        sides = 2 * (self.hidden + q) + 2 * (self.hidden + kv) + 3 * (self.hidden + self.ffn)
        return self.layers * rank * sides


QWEN3: Final = {
    "1.7B": Shape("Qwen3-1.7B", 28, 2048, 16, 8, 6144, True),
    "8B": Shape("Qwen3-8B", 36, 4096, 32, 8, 12288, False),
    "32B": Shape("Qwen3-32B", 64, 5120, 64, 8, 25600, False),
}


@dataclass(frozen=True)
class Device:
    """What a device can do at best: bfloat16 matrix products and reads of its memory, a second."""

    name: str = "H200"
    flops: float = 788e12
    bytes: float = 4.3e12
    memory: float = 139 * GIB


@dataclass(frozen=True)
class Step:
    """One step of on-policy distillation: so many rollouts, of so many prompt and sampled tokens."""

    student: Shape
    teacher: Shape
    rollouts: int = 256
    prompt_tokens: int = 256
    completion_tokens: int = 2048
    device: Device = Device()

    @property
    def tokens(self) -> int:
        """All that teacher and student read."""
        return self.rollouts * (self.prompt_tokens + self.completion_tokens)

    @property
    def sampling_s(self) -> float:
        """Reads of the student's weights and of every sequence's cache, once for each sampled token."""
        weights = 2 * (self.student.block_parameters + self.student.head_parameters)
        context = self.prompt_tokens + self.completion_tokens / 2
        caches = self.rollouts * context * self.student.cache_bytes_a_token
        return self.completion_tokens * (weights + caches) / self.device.bytes

    @property
    def scoring_s(self) -> float:
        """One forward pass of the teacher."""
        return self.tokens * self.teacher.forward_flops(self._mean_context) / self.device.flops

    @property
    def training_s(self) -> float:
        """Forward, backward to the adapter, and forward again for gradient checkpointing: three forward passes."""
        return 3 * self.tokens * self.student.forward_flops(self._mean_context) / self.device.flops

    @property
    def floor_s(self) -> float:
        """What no program can beat on one device that does one after the other."""
        return self.sampling_s + self.scoring_s + self.training_s

    @property
    def _mean_context(self) -> float:
        return (self.prompt_tokens + self.completion_tokens) / 2


RECIPE: Final = Step(QWEN3["8B"], QWEN3["32B"])
STEPS: Final = 150
SHARE: Final = 0.4
"""Of a device's best that a step reaches: a plan, to be replaced by the seconds that the first steps show."""


def tables() -> dict[str, str]:
    """Markdown tables by the names under which a recipe asks for them."""
    return {"estimate time": _times(), "estimate memory": _memory()}


def _times() -> str:
    steps = [RECIPE, Step(QWEN3["1.7B"], QWEN3["8B"])]
    rows = [
        (
            f"{one.student.name}, {one.teacher.name}",
            *(f"{seconds:.0f} s" for seconds in (one.sampling_s, one.scoring_s, one.training_s, one.floor_s)),
            _hours(one.floor_s),
            _hours(one.floor_s / SHARE),
        )
        for one in steps
    ]
    return table(("student, teacher", "sampling", "scoring", "training", "a step", "150 steps", "at 40 %"), rows)


def _hours(step_s: float) -> str:
    return f"{STEPS * step_s / 3600:.1f} h"


def _memory() -> str:
    student, teacher = RECIPE.student, RECIPE.teacher
    context = RECIPE.prompt_tokens + RECIPE.completion_tokens
    adapter = student.lora_parameters(32)
    parts = {
        f"{teacher.name}, weights in bfloat16 (2 bytes a parameter)": 2 * teacher.parameters,
        f"{student.name}, weights in bfloat16": 2 * student.parameters,
        f"its adapter of rank 32: {adapter / 1e6:.0f} million parameters, each with gradient and two AdamW states in "
        "float32 (16 bytes)": 16 * adapter,
        f"caches of 64 sequences of {context} tokens at once": 64 * context * student.cache_bytes_a_token,
        f"caches of all {RECIPE.rollouts} sequences at once": RECIPE.rollouts * context * student.cache_bytes_a_token,
    }
    return table(("what", "size"), [(name, f"{size / GIB:.1f} GiB") for name, size in parts.items()])
