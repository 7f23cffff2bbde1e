"""What is measured on a GPU, in the order of its worth.

A row is one measurement. Rows that share models and imports form a job, which runs in a process of its own.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

Part = Literal["truth", "sft", "on_policy", "head", "quantised", "models"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    name: str
    """Unique within its part."""
    least_s: float
    """With less of the budget left it is not begun."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the measurement."""


@dataclass(frozen=True, slots=True)
class Job:
    """Rows that one process measures, in order."""

    part: Part
    name: str
    """Unique within its part."""
    module: str
    """Module of `benchmarks.gpu.parts` whose `measure(row, bench)` takes one row."""
    rows: tuple[Row, ...]


def plan(*, with_model: bool, tiny: bool = False) -> list[Job]:
    """All jobs. The first rounds of SFT and on-policy distillation come before their variants.

    Args:
        with_model: include the rows that need the folder of a pretrained model.
        tiny: for a rehearsal, in which all sizes are the same model: one of them is enough.
    """
    goals, variants = (_GOALS[:1], ()) if tiny else (_GOALS, _VARIANTS)
    first = [*_TRUTH, *_sft(goals), *_ON_POLICY, _ENGINES, _SAMPLER, _HEAD, *_QUANTISED, _DEMO]
    return [*first, *([_PRETRAINED] if with_model else []), _AGREEMENT, *_ON_POLICY_VARIANTS, *_sft(variants)]


_LOSSES: Final = ("cross_entropy", "reverse_kl", "forward_kl", "jsd", "top_k")
_TRUTH: Final = (
    Job(
        "truth",
        "kernels",
        "kernels",
        (
            Row("peaks", 10, {"kernel": "peaks"}),
            Row("packed flash attention", 10, {"kernel": "flash"}),
            Row("decoding attention", 10, {"kernel": "decoding"}),
            Row("torch.compile", 20, {"kernel": "compile"}),
            Row("8-bit and 4-bit kernels", 15, {"kernel": "quantised"}),
        ),
    ),
    Job(
        "truth",
        "exactness",
        "exactness",
        (
            Row("packed rows, float32", 20, {"check": "packing", "dtype": "float32"}),
            Row("packed rows, bfloat16", 20, {"check": "packing", "dtype": "bfloat16"}),
            Row("sampler, float32", 20, {"check": "sampler", "dtype": "float32"}),
            Row("sampler, bfloat16", 20, {"check": "sampler", "dtype": "bfloat16"}),
            Row("merged adapter, float32", 15, {"check": "adapter", "dtype": "float32"}),
            Row("merged adapter, bfloat16", 15, {"check": "adapter", "dtype": "bfloat16"}),
            *(
                Row(f"head, {loss}, {dtype}", 15, {"check": "head", "loss": loss, "dtype": dtype})
                for loss in _LOSSES
                for dtype in ("float32", "bfloat16")
            ),
            *(
                Row(
                    f"compiled head, {loss}", 20, {"check": "head", "loss": loss, "dtype": "bfloat16", "compiled": True}
                )
                for loss in _LOSSES
            ),
        ),
    ),
    Job("truth", "tests", "gpu_tests", (Row("pytest -m gpu", 60),)),
)

_GOALS: Final = (("8B", 4_096), ("0.6B", 16_384), ("1.7B", 16_384))
"""Sizes and tokens of a packed row for which there is a goal (`goals.py`)."""
_VARIANTS: Final = (("1.7B", 4_096), ("0.6B", 4_096), ("8B", 16_384))
_LEAST_S: Final = {"0.6B": 40.0, "1.7B": 45.0, "8B": 60.0}


def _sft(settings: tuple[tuple[str, int], ...]) -> list[Job]:
    """Jobs of both sides for each size and length of a packed row."""
    jobs = []
    for size, row_tokens in settings:
        jobs.append(_sft_job(size, row_tokens, "ours", ("compiled", "plain")))
        # Each by itself, since Liger's kernels replace those of transformers in the whole process.
        jobs += [_sft_job(size, row_tokens, "trl", (variant,)) for variant in ("liger", "packed", "compiled")]
    return jobs


def _sft_job(size: str, row_tokens: int, side: str, variants: tuple[str, ...]) -> Job:
    rows = tuple(
        Row(
            f"{size} at {row_tokens:,}, {side} {variant}",
            _LEAST_S[size],
            {"size": size, "row_tokens": row_tokens, "side": side, "variant": variant},
        )
        for variant in variants
    )
    return Job("sft", rows[0].name, "sft", rows)


def _on_policy(pair: str, lengths: str, side: str) -> Job:
    row = Row(f"{pair}, {lengths} lengths, {side}", 75, {"pair": pair, "lengths": lengths, "side": side})
    return Job("on_policy", row.name, "on_policy", (row,))


_ON_POLICY: Final = (
    _on_policy("0.6B from 1.7B", "equal", "ours"),
    _on_policy("0.6B from 1.7B", "equal", "trl"),
)
_ON_POLICY_VARIANTS: Final = (
    _on_policy("0.6B from 1.7B", "log-normal", "ours"),
    _on_policy("0.6B from 1.7B", "log-normal", "trl"),
    _on_policy("1.7B from 8B", "log-normal", "ours"),
)
_ENGINES: Final = Job(
    "on_policy",
    "engines",
    "engines",
    tuple(Row(f"a job sampled by {engine}", 150, {"engine": engine}) for engine in ("vllm", "transformers")),
)
_SAMPLER: Final = Job(
    "on_policy",
    "sampler",
    "sampler",
    tuple(
        Row(f"sampling 256 x (128 + 512), {side}", 40, {"side": side, "lengths": "equal"})
        for side in ("ours", "generate", "generate, static cache")
    ),
)
_AGREEMENT: Final = Job("on_policy", "losses", "on_policy", (Row("losses beside TRL's", 90, {"side": "both"}),))
_HEAD: Final = Job(
    "head",
    "head",
    "head",
    tuple(
        Row(
            f"{loss}, H {hidden:,}, {'trained' if trained else 'frozen'}, {side}",
            20,
            {"loss": loss, "hidden": hidden, "trained": trained, "side": side},
        )
        for loss, hidden, trained in (
            ("cross_entropy", 1_024, True),
            ("cross_entropy", 4_096, False),
            ("reverse_kl", 1_024, True),
        )
        for side in ("ours, compiled", "ours", "naive", "liger")
        if (loss, side) != ("reverse_kl", "liger")
    ),
)
_QUANTISED: Final = (
    Job("quantised", "qlora", "quantised", (Row("8B QLoRA at 4,096", 120, {"what": "qlora"}),)),
    Job("quantised", "adamw_8bit", "quantised", (Row("8B full weights, adamw_8bit, at 4,096", 90, {"what": "adamw"}),)),
)
_DEMO: Final = Job("models", "demo", "demo", (Row("demo", 90),))
_PRETRAINED: Final = Job("models", "pretrained", "pretrained", (Row("pretrained", 120),))
