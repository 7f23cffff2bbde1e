"""TRL beside a training of ours: `DistillationTrainer` from the same start, on the same prompts in the same batches.

Its seconds are those of its steps, as ours are; the operations of a step are counted as ours are, from the tokens that
it trained on.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.frame.peers import trl_folder
from benchmarks.frame.training import run_side
from benchmarks.on_policy.sides.job import OnPolicyJob, OnPolicyRecord, num_sampled
from benchmarks.science.costs import StepCosts, step_costs
from benchmarks.science.exams import Exam
from benchmarks.science.findings import Curve, CurvePoint
from benchmarks.science.training import Training
from stillhouse.config import OnPolicyConfig
from stillhouse.store.atomic import replaced_atomically, replaced_folder
from stillhouse.store.records import read_jsonl, read_metadata, write_jsonl
from stillhouse.training.on_policy.prompts import prompts_of_batch, read_student_prompts
from stillhouse.training.workdir import exclusive

_SIDE: Final = "benchmarks.science.trl_side"
_LONGEST_TRAINING_S: Final = 7200.0
_STUDENTS: Final = "students"
_CURVE_FILE: Final = "curve.jsonl"


def trl_curve(training: Training, exam: Exam, folder: Path) -> Curve:
    """The curve of TRL's training; run now, or at hand since it ran before.

    Args:
        training: on-policy, by the exact reverse KL, one trajectory a prompt.
        exam: taken by the student at each point.
        folder: holds TRL, and what is made.

    Raises:
        NotInstallable: the package index did not provide TRL.
        RuntimeError: its training failed.
    """
    made = folder / training.digest({"": exam})
    path = made / _CURVE_FILE
    with exclusive(made, wait_s=_LONGEST_TRAINING_S):
        if not path.is_file():
            config = training.config
            assert isinstance(config, OnPolicyConfig)
            record = run_side(_SIDE, _job(training, config, made), OnPolicyRecord, trl_folder(folder / "package"))
            with replaced_atomically(path) as work:
                write_jsonl(work, _points(training, exam, record, made / _STUDENTS))
            shutil.rmtree(made / _STUDENTS)
        return Curve([CurvePoint(**point) for point in read_jsonl(path)])


def _job(training: Training, config: OnPolicyConfig, folder: Path) -> OnPolicyJob:
    assert training.prompts is not None
    assert training.teacher is not None
    workload = folder / "workload"
    with replaced_folder(workload) as work:
        (work / "student").symlink_to(training.start.absolute())
        (work / "teacher").symlink_to(training.teacher.absolute())
        prompts = read_student_prompts(training.prompts.prompts, config)
        metadata = read_metadata(training.prompts.metadata)
        batches = (prompts_of_batch(prompts, metadata, config, index) for index in range(config.num_steps))
        write_jsonl(work / "rows.jsonl", ({"messages": prompt.messages} for batch in batches for prompt in batch))
    return OnPolicyJob(
        folder=str(workload),
        scratch=str(folder / "scratch"),
        num_steps=config.num_steps,
        batch_size=config.prompts_per_step,
        num_threads=1,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        settings={
            "output_dir": str(folder / _STUDENTS),
            "lr_scheduler_type": config.schedule,
            "adam_beta1": config.beta1,
            "adam_beta2": config.beta2,
            "max_grad_norm": config.max_grad_norm,
            "max_completion_length": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
            "save_strategy": "steps",
            "save_steps": training.measure_every,
            "save_only_model": True,
        },
    )


def _points(training: Training, exam: Exam, record: OnPolicyRecord, students: Path) -> Iterator[CurvePoint]:
    yield CurvePoint(0, exam.accuracy_of(training.start), 0.0, 0.0)
    costs = StepCosts()
    # The clock is not looked at before the first step, which takes what the second takes.
    first = 2 * record.marks[0].wall_s - record.marks[1].wall_s
    for step, (mark, trajectories) in enumerate(zip(record.marks, record.trajectories, strict=True), start=1):
        costs += step_costs(
            training.start,
            training.teacher,
            training.student,
            [len(prompt) + len(completion) for prompt, completion in trajectories],
            num_sampled(trajectories),
            is_sampled=True,
            seconds=0.0,
        )
        saved = students / f"checkpoint-{step}"
        if saved.is_dir():
            yield CurvePoint(step, exam.accuracy_of(saved), costs.targets, costs.flops, mark.wall_s - first)
