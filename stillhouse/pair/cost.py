"""What a training will cost, before it is measured at all and after a few prompts were."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from stillhouse.chat.refs import adapter_base, resolve_model
from stillhouse.config import OnPolicyConfig
from stillhouse.pair.finding import PairFinding
from stillhouse.progress.text import dollars, duration, short
from stillhouse.training.pair.figures import PairFigures

_FLOPS: Final = 1e10
"""A second of one CPU core, as small models reach it."""
_STUDENT_FLOPS: Final = 8.0
"""For each weight and token: 2 to sample it, 6 to train on it."""
_TEACHER_FLOPS: Final = 2.0
_BYTES: Final = 2
"""Of a stored weight, at least."""
_MINUTES_S: Final = 600.0
_TRAIN_PASSES: Final = 3.0
"""Forward passes that an optimiser step costs: one, and a backward pass of two."""


def num_trajectories(config: OnPolicyConfig) -> int:
    """Trajectories that a training samples."""
    return config.num_batches * config.prompts_per_step * config.group_size


def may_take_minutes(config: OnPolicyConfig, student_ref: str, teacher_refs: Iterable[str]) -> bool:
    """Whether a training may take more than ten minutes, were every completion as long as allowed, on one CPU core.

    Rather too often yes than too seldom: always for models whose size is not known here, such as those of the hub.
    """
    turns = config.max_turns
    tokens = num_trajectories(config) * config.max_tokens * turns
    student, *teachers = (_num_weights(ref) for ref in (student_ref, *teacher_refs))
    flops = tokens * (_STUDENT_FLOPS * config.num_passes * student + _TEACHER_FLOPS * sum(teachers))
    return flops / _FLOPS > _MINUTES_S


def training_finding(config: OnPolicyConfig, figures: PairFigures) -> PairFinding:
    """Time and tokens of the whole training, at the speeds at which the pair was measured."""
    student = figures.student
    mean_tokens = student.num_tokens / student.num_trajectories
    factor = num_trajectories(config) / student.num_trajectories
    sampling, training = factor * student.sampling_s, factor * student.forward_s * _TRAIN_PASSES * config.num_passes
    scoring = factor * sum(teacher.scoring_s for teacher in figures.teachers)
    return PairFinding(
        "cost: training",
        "fine",
        f"about {duration(sampling + scoring + training)} at this speed: sampling {duration(sampling)}, scoring "
        f"{duration(scoring)}, training {duration(training)}; {num_trajectories(config):,} trajectories of "
        f"{mean_tokens:.0f} sampled tokens, {short(factor * student.num_inputs)} tokens for teachers to read",
    )


def rollouts_finding(costs: Sequence[float | None], num_rollouts: int) -> PairFinding:
    """Price of the teacher's rollouts for SFT, by the costs of the answers that it gave here in USD."""
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return PairFinding("cost: rollouts", "unknown", f"{num_rollouts:,} rollouts; their price is not known")
    mean = sum(known) / len(known)
    detail = f"about {dollars(mean * num_rollouts)} for {num_rollouts:,} rollouts at {dollars(mean)} each"
    return PairFinding("cost: rollouts", "fine", detail)


def _num_weights(ref: str) -> float:
    """At most so many, those of its base where it is an adapter; infinite where the files are not here."""
    folder = Path(resolve_model(ref))
    if not folder.is_dir():
        return float("inf")
    if (base := adapter_base(folder)) is not None:
        return _num_weights(base)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / _BYTES or float("inf")
