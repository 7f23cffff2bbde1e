"""Speed of a training, its utilisation of the machine, and the time left."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stillhouse.progress.state import RecentRate
from stillhouse.training.model.microbatches import num_inputs, num_targets
from stillhouse.training.monitoring.flops import ModelFlops
from stillhouse.training.monitoring.metrics import Ratio
from stillhouse.types import Sample

_ETA_WINDOW_S = 120.0


@dataclass(eq=False)
class Throughput:
    """Times steps and counts their tokens.

    A step is `begin_step`, `batch_ready` once the method has handed its batch over, and `end_step` when its result is
    on the host. Steps of several ranks are counted on each of them, from the microbatches of all.
    """

    flops: ModelFlops | None
    """Costs of a token; None where they are unknown, and with them MFU."""
    peak_flops: float
    """Operations a second of all devices together."""
    num_steps: int
    packing: bool
    """Whether microbatches are packed and so have no padding."""
    device: torch.device
    """Whose memory is reported."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._started = self._ready = self.clock()
        if self.device.type == "cuda":
            # The memory used to load the model and measure the peak does not count.
            torch.cuda.reset_peak_memory_stats(self.device)
        self._rate = RecentRate(_ETA_WINDOW_S)
        self.eta_s: float | None = None
        """Seconds to the end at the pace of the last minutes, validation and checkpoints included; None at first."""

    def begin_step(self, num_done: int) -> None:
        """Begin a step after `num_done` finished ones."""
        self._started = self._ready = self.clock()
        per_s = self._rate.per_second(num_done, self._started)
        self.eta_s = (self.num_steps - num_done) / per_s if per_s > 0.0 else None

    def batch_ready(self) -> None:
        """Note that the method has returned the batch."""
        self._ready = self.clock()

    def end_step(self, groups: Sequence[Sequence[Sample]]) -> dict[str, Ratio]:
        """Return the metrics of the step over `groups`, the microbatches of all ranks.

        Returns:
            tokens_per_s: input tokens, padding excluded, a second of the whole step. mfu: model FLOPs utilisation, the
            share of the peak once the batch is ready, so that sampling a batch does not count as idle time.
            padding_share: of what went through the model. supervised_share: loss positions among the input tokens.
            step_s: seconds of a step, of which data_s went into getting the batch and train_s into training on it.
        """
        now = self.clock()
        step_s, busy_s = max(now - self._started, 1e-9), max(now - self._ready, 1e-9)
        lengths = [[num_inputs(sample) for sample in group] for group in groups]
        num_tokens = sum(map(sum, lengths))
        num_slots = num_tokens if self.packing else sum(len(group) * max(group) for group in lengths)
        num_supervised = sum(map(num_targets, groups))
        mfu: dict[str, Ratio] = {}
        if self.flops is not None:
            flops = self.flops.of_step((length for group in lengths for length in group), num_supervised)
            mfu["mfu"] = (flops, self.peak_flops * busy_s)
        return {
            "tokens_per_s": (num_tokens, step_s),
            **mfu,
            "padding_share": (num_slots - num_tokens, num_slots),
            "supervised_share": (num_supervised, num_tokens),
            "step_s": (step_s, 1.0),
            "data_s": (self._ready - self._started, 1.0),
            "train_s": (busy_s, 1.0),
        }

    def gauges(self) -> dict[str, float]:
        """Return current values rather than means: `peak_memory_gib` and, where it is known, `eta_s`."""
        eta = {} if self.eta_s is None else {"eta_s": self.eta_s}
        return {"peak_memory_gib": peak_memory_gib(self.device), **eta}


def peak_memory_gib(device: torch.device) -> float:
    """Return the most memory that tensors held on a GPU since training began, or that this process ever held in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage includes the peak of the process that this one was forked from.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
