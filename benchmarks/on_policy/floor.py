"""The least time that one step of on-policy distillation takes on this machine.

Sampling reads all weights and the keys and values so far once for every token of the longest completion, and multiplies
each row by the weights; whichever takes longer counts. Everything else is bound by arithmetic: the teacher's forward
pass, and forward and backward pass of the student with the teacher's logits next to its own. Norms, softmax and the
optimiser count nothing. Products of [n, k] with [k, m] count 2nkm.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch

from benchmarks.frame.training import Precision
from benchmarks.on_policy.sides.job import Trajectory
from benchmarks.on_policy.workload import Pair
from benchmarks.sft.workload import Shape
from stillhouse.training.monitoring.flops import measure_peak_flops
from stillhouse.training.repeatability import use_fast_float32_products

_READ_ELEMENTS: Final = {"cpu": 1 << 26, "cuda": 1 << 30}
_READ_TIMES: Final = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine can do in one type of numbers."""

    flops: float
    """Operations a second of large matrix products."""
    bytes_per_s: float
    """Read from memory."""
    number_bytes: int

    @classmethod
    def measured(cls, precision: Precision, device: torch.device) -> Self:
        """Measures it, with as many threads as torch has now."""
        dtype = getattr(torch, precision)
        if device.type == "cpu":
            use_fast_float32_products()
        return cls(measure_peak_flops(device, dtype), _bytes_per_s(device), dtype.itemsize)


def floor_seconds(
    pair: Pair, trajectories: Sequence[Trajectory], machine: Machine, *, is_scored: bool = True
) -> dict[str, float]:
    """Seconds of sampling, of the teacher's layers and of training for one step, by the names of `WORKS`.

    Args:
        pair: the models.
        trajectories: of the step.
        machine: what it can do.
        is_scored: by the teacher, whose output layer is part of training.
    """
    lengths = [(len(prompt_ids), len(completion_ids)) for prompt_ids, completion_ids in trajectories]
    whole = [prompt + completion for prompt, completion in lengths]
    num_sampled = sum(completion for _, completion in lengths)
    student, teacher = pair.student, pair.teacher
    heads = 2.0 * num_sampled * (3 * _head(student) + is_scored * _head(teacher))
    return {
        "sample": sampling_seconds(student, lengths, machine),
        "score": is_scored * _forward(teacher, whole) / machine.flops,
        "train": (3.0 * _forward(student, whole) + heads) / machine.flops,
    }


def sampling_seconds(shape: Shape, lengths: Sequence[tuple[int, int]], machine: Machine) -> float:
    weights, kv = _layers(shape) + _head(shape), 2 * shape.layers * shape.kv_heads * shape.head_dim
    seconds = _forward(shape, [prompt for prompt, _ in lengths]) / machine.flops
    for place in range(max(completion for _, completion in lengths)):
        contexts = [prompt + place for prompt, completion in lengths if completion > place]
        read_s = (weights + kv * sum(contexts)) * machine.number_bytes / machine.bytes_per_s
        flops = 2.0 * weights * len(contexts) + _attention(shape) * sum(contexts)
        seconds += max(read_s, flops / machine.flops)
    return seconds


def _forward(shape: Shape, lengths: Sequence[int]) -> float:
    """Operations of the layers over sequences, without the output layer."""
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return 2.0 * _layers(shape) * sum(lengths) + _attention(shape) * pairs


def _attention(shape: Shape) -> float:
    """Operations for each pair of a token and one it attends to."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim


def _layers(shape: Shape) -> int:
    """Weights of the layers."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.layers * shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate)


def _head(shape: Shape) -> int:
    """Weights of the output layer."""
    return shape.hidden * shape.vocabulary


def _bytes_per_s(device: torch.device) -> float:
    numbers = torch.ones(_READ_ELEMENTS[device.type], device=device)
    best = float("inf")
    for _ in range(_READ_TIMES):
        started = time.perf_counter()
        # Its transfer to the host waits for the device.
        numbers.sum().item()
        best = min(best, time.perf_counter() - started)
    return numbers.nbytes / best
