"""This project's trainer, put together as a training job puts it together.

python -m benchmarks.sft.sides.ours JOB.json RECORD.json
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.frame.training import Mark
from benchmarks.sft.sides.job import SftJob, SftRecord, fingerprint
from stillhouse.config import SftConfig, StudentConfig, TrainerConfig
from stillhouse.config.training import SftSource
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.ranks import Ranks
from stillhouse.training.repeatability import use_fast_float32_products
from stillhouse.training.sft.method import load_sft


class Marks(NoListener):
    """Marks the end of each step, and notes its loss."""

    def __init__(self, record: SftRecord, num_tokens: list[int]) -> None:
        self._record = record
        self._num_tokens = num_tokens

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """A step has ended; what is saved after the last is not waited for."""
        if "sft/loss" in metrics:
            self._record.losses.append(metrics["sft/loss"])
            self._record.marks.append(Mark.now(sum(self._num_tokens[:step])))


def main(job: SftJob) -> SftRecord:
    """Trains."""
    torch.set_num_threads(job.num_threads)
    # As every training job on a CPU does.
    use_fast_float32_products()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    device, work_dir = torch.device("cpu"), Path(job.scratch)
    config = _config(job)
    student_config = StudentConfig(parameters="full", dtype=job.precision)
    student = load_student(f"{job.folder}/model", student_config, device, seed=0)
    ranks = Ranks.single(device)
    max_length = student_config.max_length
    sft = load_sft(None, student.tokenizer, config, max_length, work_dir=work_dir, num_processes=1, ranks=ranks)
    batches = [sft.batch(step).samples for step in range(job.num_steps)]
    record = SftRecord(rows=fingerprint((one.token_ids, one.loss_mask) for batch in batches for one in batch))
    marks = Marks(record, [sum(len(sample.token_ids) for sample in batch) for batch in batches])
    sft.num_steps = job.num_steps
    build_trainer(sft, student, config, work_dir=work_dir, identity={}, listener=marks).run()
    return record


def _config(job: SftJob) -> SftConfig:
    num_rows = len(job.rows())
    return SftConfig(
        sources=(SftSource(path=f"{job.folder}/rows.jsonl"),),
        dataset_weight=0.0,
        batch_size=job.batch_size,
        num_epochs=job.order(num_rows).num_epochs,
        learning_rate=job.learning_rate,
        trainer=TrainerConfig(
            weight_decay=job.weight_decay,
            schedule="cosine",
            betas=(0.9, 0.999),
            checkpoint_every_steps=job.num_steps,
            log_every_steps=1,
            **job.settings,
        ),
    )


if __name__ == "__main__":
    main(SftJob.read(Path(sys.argv[1]))).write(Path(sys.argv[2]))
