from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.science.lab import CHAIN, Lab
from benchmarks.science.methods import EXACT, GRPO, distil
from benchmarks.science.tasks.chain import LENGTH
from benchmarks.science.training import Training


def sft(lab: Lab, start: Path) -> Training:
    config = lab.sft(lab.rows(32, 0.4, seed=0), 0, num_epochs=1, learning_rate=1e-3)
    return Training(start=start, config=config, measure_every=1)


def test_a_course_has_every_step_and_its_costs_and_is_not_run_again(lab: Lab, new_model: Path) -> None:
    course = lab.course(sft(lab, new_model))
    assert [point.step for point in course.points] == [0, 1, 2]
    assert all(0.0 <= point.accuracies[CHAIN] <= 1.0 for point in course.points)
    start, middle, end = (point.costs for point in course.points)
    assert start.flops == 0.0
    # Of each answer its results and its end are learnt.
    assert (middle.targets, end.targets) == pytest.approx((16 * (LENGTH + 1), 32 * (LENGTH + 1)))
    assert end.flops == pytest.approx(2 * middle.flops)
    file = course.folder / "model.safetensors"
    written = file.stat().st_mtime_ns
    assert lab.course(sft(lab, new_model)) == course
    assert file.stat().st_mtime_ns == written
    assert not (course.folder.parent / "work").exists()


def test_what_decides_a_course_decides_its_name(lab: Lab, new_model: Path) -> None:
    training, exams = sft(lab, new_model), {CHAIN: lab.exam}
    others = [
        replace(training, measure_every=2).digest(exams),
        replace(training, config=training.config.model_copy(update={"seed": 1})).digest(exams),
        training.digest({CHAIN: replace(lab.exam, max_tokens=3)}),
    ]
    assert len({training.digest(exams), *others}) == 4


def test_a_teacher_is_counted_and_rewards_alone_need_none(lab: Lab, new_model: Path) -> None:
    scored = distil(lab, 0, new_model, new_model, **EXACT).points[-1].costs
    assert scored.student_flops == pytest.approx(4 * scored.teacher_flops)
    named = distil(lab, 0, new_model, None, teachers=[{"name": "one", "model": str(new_model)}], **EXACT)
    assert replace(named.points[-1].costs, seconds=0.0) == replace(scored, seconds=0.0)
    assert scored.seconds > 0
    rewarded = distil(lab, 0, new_model, None, **GRPO).points[-1].costs
    assert rewarded.teacher_flops == 0.0 < rewarded.student_flops
