"""Where the time of a training step goes: shares of the kernels by kind, idle time, and the longest kernels.

A kernel belongs to the output layer or the optimiser if it runs while that phase does on the device, whatever it is;
the others are distinguished by name.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.bench import Bench

HEAD: Final = "stillhouse: head"
_OPTIMIZER: Final = "Optimizer.step"
_ATTENTION: Final = re.compile(r"flash|fmha|attention|attn|sdp", re.IGNORECASE)
_MATMUL: Final = re.compile(r"gemm|nvjet|cutlass|cublas|xmma|matmul|::mm$|::addmm|::bmm|::linear", re.IGNORECASE)
_NUM_TOP: Final = 12
_NAME_LENGTH: Final = 90


@dataclass(frozen=True, slots=True)
class Interval:
    """Something that ran on the device; times in microseconds."""

    name: str
    start: float
    end: float

    @property
    def duration(self) -> float:
        """In microseconds."""
        return self.end - self.start


class StepProfiler:
    """Profiles one training step: `start` at the end of a step, `figures` at the end of the next.

    Args:
        step: the module from a microbatch to the loss; what it does after its backbone is the output layer's time.
        backbone: the module in it from token ids to hidden states.
        bench: on which device.
    """

    def __init__(self, step: nn.Module, backbone: nn.Module, bench: Bench) -> None:
        self._bench = bench
        self._step = step
        self._backbone = backbone
        self._hooks: list[Any] = []
        self._profile: Any = None

    def start(self) -> None:
        """Begins to record."""
        ranges: list[Any] = []

        def enter(*_: Any) -> None:
            ranges.append(record_function(HEAD))
            ranges[-1].__enter__()

        def leave(*_: Any) -> None:
            if ranges:
                ranges.pop().__exit__(None, None, None)

        self._hooks = [self._backbone.register_forward_hook(enter), self._step.register_forward_hook(leave)]
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._bench.on_gpu else [])]
        self._bench.synchronize()
        self._profile = profile(activities=activities)
        self._profile.__enter__()

    def figures(self) -> dict[str, Any]:
        """Ends recording; what `shares` gives."""
        self._bench.synchronize()
        self._profile.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        if self._bench.on_gpu:
            # As recorded: torch takes 50 us to make an event of its own of each, and a step has half a million.
            return shares(*_on_gpu(self._profile.profiler.kineto_results.events()))
        return shares(*_on_cpu(self._profile.events()))


def shares(kernels: Sequence[Interval], phases: Sequence[Interval]) -> dict[str, Any]:
    """Shares of the time from the first kernel's start to the last one's end.

    Args:
        kernels: everything that ran on the device.
        phases: spans of the output layer and the optimiser on the device.

    Returns:
        `shares` by kind (matmul, attention, head, optimizer, other, idle) and the longest kernels in milliseconds.
    """
    if not kernels:
        return {}
    span = max(kernel.end for kernel in kernels) - min(kernel.start for kernel in kernels)
    by_kind: defaultdict[str, float] = defaultdict(float)
    by_name: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        by_kind[_kind(kernel, phases)] += kernel.duration
        by_name[kernel.name[:_NAME_LENGTH]] += kernel.duration
    longest = sorted(by_name.items(), key=lambda item: item[1], reverse=True)[:_NUM_TOP]
    kinds = {kind: round(by_kind[kind] / span, 4) for kind in ("matmul", "attention", "head", "optimizer", "other")}
    return {
        "profiled_ms": round(span / 1e3, 3),
        "shares": {**kinds, "idle": round(1.0 - _covered(kernels) / span, 4)},
        "num_kernels": len(kernels),
        "top_kernels_ms": {name: round(us / 1e3, 3) for name, us in longest},
    }


def _kind(kernel: Interval, phases: Iterable[Interval]) -> str:
    for phase in phases:
        if phase.start <= kernel.start < phase.end:
            return "head" if phase.name == HEAD else "optimizer"
    if _ATTENTION.search(kernel.name):
        return "attention"
    return "matmul" if _MATMUL.search(kernel.name) else "other"


def _covered(kernels: Sequence[Interval]) -> float:
    """Microseconds in which at least one kernel runs."""
    covered, reached = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda one: one.start):
        covered += max(0.0, kernel.end - max(kernel.start, reached))
        reached = max(reached, kernel.end)
    return covered


def _on_gpu(events: Iterable[Any]) -> tuple[list[Interval], list[Interval]]:
    """Kernels and phases from the profiler's records, whose times are in nanoseconds."""
    listed = list(events)
    annotations = {event.name() for event in listed if event.is_user_annotation()}
    on_gpu = [
        Interval(event.name(), event.start_ns() / 1e3, (event.start_ns() + event.duration_ns()) / 1e3)
        for event in listed
        if event.device_type() == DeviceType.CUDA
    ]
    phases = [one for one in on_gpu if _is_phase(one.name)]
    return [one for one in on_gpu if one.name not in annotations], phases


def _on_cpu(events: Iterable[Any]) -> tuple[list[Interval], list[Interval]]:
    """What operations do themselves takes the place of kernels."""
    listed = list(events)
    phases = [
        Interval(event.name, event.time_range.start, event.time_range.end) for event in listed if _is_phase(event.name)
    ]
    operations = [event for event in listed if not event.is_user_annotation]
    return [_own_time(event) for event in operations], phases


def _own_time(event: Any) -> Interval:
    start = event.time_range.start
    return Interval(event.name, start, start + event.self_cpu_time_total)


def _is_phase(name: str) -> bool:
    return name == HEAD or name.startswith(_OPTIMIZER)
