"""What a measurement is given: the device, the scale, the time left, and where its figures go."""

import gc
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.plan import Part, Row
from benchmarks.gpu.results import Measurement, Results, Status


class Unavailable(Exception):
    """The machine lacks what a row needs, such as a peer's package; the message says what."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Surroundings of the measurements of one process."""

    device: torch.device
    tiny: bool
    """Models are tiny: a rehearsal, whose figures mean nothing."""
    record: Callable[[Mapping[str, Any]], None]
    """Adds figures to the row being measured; they are on disk when it returns."""
    model: Path | None = None
    """Folder of a pretrained model, where one was given."""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Waits until the device has done all it was given."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


class RowRunner:
    """Takes the measurements of one part in this process.

    Args:
        results: where they are written.
        part: they belong to.
        machine: kept with each of them.
        device: they are taken on.
        tiny: see `Bench`.
        model: see `Bench`.
        deadline: value of `time.monotonic()` after which no row begins.
    """

    def __init__(
        self,
        results: Results,
        part: Part,
        machine: Mapping[str, Any],
        device: torch.device,
        *,
        tiny: bool,
        model: Path | None,
        deadline: float,
    ) -> None:
        self._results = results
        self._part = part
        self._machine = dict(machine)
        self._device = device
        self._tiny = tiny
        self._model = model
        self._deadline = deadline

    def run(self, rows: Sequence[Row], measure: Callable[[Row, Bench], None]) -> None:
        """Measures row after row; one that fails is written down with its reason and the next one begins."""
        for row in rows:
            left_s = self._deadline - time.monotonic()
            if left_s < row.least_s and not self._tiny:
                print(f"{row.name}: not begun, {left_s:.0f} s are left of the budget", flush=True)
                continue
            self._run_row(row, measure)
            self._free_memory()

    def _run_row(self, row: Row, measure: Callable[[Row, Bench], None]) -> None:
        figures: dict[str, Any] = {}
        started = time.monotonic()

        def put(status: Status, reason: str | None = None) -> None:
            seconds = round(time.monotonic() - started, 1)
            self._results.put(self._part, row.name, Measurement(status, self._machine, figures, reason, seconds))

        def record(more: Mapping[str, Any]) -> None:
            figures.update(more)
            put("partial", "the process ended before the row was complete")

        record({})
        try:
            measure(row, Bench(self._device, self._tiny, record, self._model))
        except (Unavailable, ModuleNotFoundError) as error:
            put("unavailable", str(error))
        # Out of memory, a kernel that is not there, a peer's mistake: all of them are findings.
        except Exception as error:
            traceback.print_exc()
            put("failed", f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
        else:
            put("measured")

    def _free_memory(self) -> None:
        torch._dynamo.reset()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
