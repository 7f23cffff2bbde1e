"""What the figures are held against: goals on one H200, and what others report."""

from dataclasses import dataclass
from typing import Final

from benchmarks.gpu.plan import Part


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of one or several rows, the best of which counts."""

    what: str
    part: Part
    rows: tuple[str, ...]
    figure: str
    bound: float
    higher_is_better: bool
    anchor: str
    """What another system reports, or what was computed."""

    def holds(self, value: float) -> bool:
        """Whether a value reaches the goal."""
        return value >= self.bound if self.higher_is_better else value <= self.bound

    def text(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.1%}" if self.figure == "mfu" else f"{value:.2f} s"


def _sft(what: str, rows: str, bound: float, anchor: str) -> Goal:
    return Goal(what, "sft", (f"{rows}, ours compiled", f"{rows}, ours plain"), "mfu", bound, True, anchor)


GOALS: Final = (
    _sft(
        "SFT, 8B LoRA, rows of 4,096",
        "8B at 4,096",
        0.5,
        "NeMo AutoModel on one H100: 14,110 tokens/s, 423 TFLOP/s, 42.8 % of the datasheet's peak",
    ),
    _sft(
        "SFT, 0.6B full weights, rows of 16,384",
        "0.6B at 16,384",
        0.4,
        "prime-rl's baseline on one H100: 25,486 tokens/s, 23.7 %",
    ),
    _sft("SFT, 1.7B full weights, rows of 16,384", "1.7B at 16,384", 0.5, "none"),
    Goal(
        "on-policy step, 0.6B from 1.7B, 256 x (128 + 512)",
        "on_policy",
        ("0.6B from 1.7B, equal lengths, ours",),
        "s_per_step",
        5.0,
        False,
        "computed: 2.7 s by memory bandwidth and arithmetic, 12.5 s where Python launches each step of decoding",
    ),
)
