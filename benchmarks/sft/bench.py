"""SFT by this project and by TRL."""

from dataclasses import replace
from typing import Any, Final

from benchmarks.frame.against_trl import Bench, LossReport, Workload
from benchmarks.sft.settings import BEST, NAMES, OURS, PLAIN, trl_settings
from benchmarks.sft.sides.job import SftJob, SftRecord
from benchmarks.sft.workload import SHAPES, write_workload

_NUM_ROWS: Final = 512


class SftBench(Bench[SftJob, SftRecord]):
    """SFT on conversations of very different lengths."""

    sides = "benchmarks.sft.sides"
    record = SftRecord
    our_settings = OURS
    best_trl_settings = BEST
    all_trl_settings = NAMES
    least_ratio = 2.5

    def trl_settings(self, name: str, batch_size: int) -> dict[str, Any]:
        """Arguments of `SFTConfig`."""
        return trl_settings(name, batch_size)

    def losses(self, workload: Workload) -> LossReport:
        """The losses of both, TRL accumulating row by row."""
        job = replace(self.job(workload), with_losses=True)
        ours = self.run("ours", job)
        trl = self.run("trl", replace(job, settings=trl_settings(PLAIN, workload.batch_size)))
        return LossReport.of("losses", ours.losses, trl.losses, same_data=ours.rows == trl.rows)

    def job(self, workload: Workload) -> SftJob:
        """A training on the shape's conversations."""
        folder = self.folder / workload.shape
        if not folder.exists():
            write_workload(folder, SHAPES[workload.shape], _NUM_ROWS)
        return SftJob(
            folder=str(folder),
            scratch=str(self.folder / "scratch"),
            num_steps=workload.num_steps,
            batch_size=workload.batch_size,
            precision=workload.precision,
            num_threads=self.num_threads,
        )
