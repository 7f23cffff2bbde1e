"""What the training process measures of the embedded pair, by a job of its own."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.progress.state import NoProgress
from stillhouse.serving.models import load_model
from stillhouse.training.job import TrainJob
from stillhouse.training.pair.figures import PairFigures, TeacherFigures, read_figures
from stillhouse.training.pair.settings import pair_settings
from stillhouse.training.run import run_job
from tests.stillhouse.training.sections import on_policy_of

Measured = Callable[..., PairFigures]
SMALL = {"max_tokens": 48, "max_turns": 6}


@pytest.fixture
def measured(
    prompts_file: Path,
    metadata_file: Path,
    full_student: StudentConfig,
    calculator: ToolsConfig,
    runtime: RuntimeConfig,
    tmp_path: Path,
) -> Measured:
    def run(*teachers: dict[str, Any], default: str | None = None, student: str = "embedded:student") -> PairFigures:
        config = on_policy_of({**SMALL, "teachers": teachers})
        job = TrainJob(
            method="pair",
            student_ref=student,
            student=full_student,
            on_policy=pair_settings(config, default),
            prompts_file=prompts_file,
            metadata_file=metadata_file,
            tools=calculator,
            work_dir=tmp_path / "work",
            output_dir=tmp_path / "out",
            runtime=runtime.model_copy(update={"store": str(tmp_path / "store")}),
        )
        run_job(job, NoProgress())
        return read_figures(tmp_path / "out")

    return run


def only(figures: PairFigures) -> TeacherFigures:
    [teacher] = figures.teachers
    return teacher


def test_a_student_agrees_with_itself(measured: Measured) -> None:
    figures = measured(default="embedded:student")
    teacher = only(figures)
    assert teacher.agreement is not None
    assert abs(teacher.agreement.kl) < 1e-4
    assert (teacher.agreement.differing, teacher.agreement.top_k) == (0.0, 20)
    assert teacher.agreement.overlap == pytest.approx(1.0, abs=1e-3)
    assert teacher.agreement.nll == pytest.approx(figures.student.nll, abs=1e-4)
    assert teacher.ends is not None
    assert teacher.ends.teacher == pytest.approx(teacher.ends.student, abs=1e-4)
    assert teacher.rendering is not None
    assert not teacher.rendering.differs
    assert teacher.agreement.num_tokens == figures.student.num_tokens


def test_a_server_and_the_model_itself_give_the_same_figures(
    measured: Measured, serve: Callable[[str, str], str]
) -> None:
    url = serve("embedded:teacher", "big")
    near = {"name": "near", "model": "embedded:teacher"}
    far = {"name": "far", "kind": "vllm", "model": "big", "base_url": url}
    one, other = (measured(settings).teachers[0].agreement for settings in (near, far))
    assert one is not None
    assert other is not None
    for name in ("kl", "nll", "overlap", "differing", "worst_share"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-2, abs=2e-3), name
    assert one.kl > 0.05


def test_teachers_by_bytes_and_the_students_base_are_measured_as_far_as_they_go(measured: Measured) -> None:
    aligned = {"name": "aligned", "model": "embedded:teacher", "alignment": "bytes"}
    base = {"name": "base", "kind": "base", "hint": "The answer is {{ expected_answer }}."}
    for settings in (aligned, base):
        teacher = only(measured({**settings, "routes": []}))
        assert teacher.agreement is not None
        assert teacher.agreement.kl > 0.05
        assert teacher.rendering is None


def test_a_teacher_that_cannot_be_loaded_is_a_figure(measured: Measured, tmp_path: Path) -> None:
    teacher = only(measured({"name": "gone", "model": str(tmp_path / "gone")}))
    assert teacher.agreement is None
    assert "is not a folder" in str(teacher.refusal)


def test_a_teacher_to_which_no_prompt_is_routed_is_loaded_and_not_asked(measured: Measured) -> None:
    teacher = only(measured({"name": "far", "model": "embedded:teacher", "routes": ["elsewhere"]}))
    assert (teacher.refusal, teacher.agreement) == (None, None)


def test_teachers_that_are_the_student_itself_are_left_out() -> None:
    teachers = [{"name": "mean", "kind": "ema"}, {"name": "far", "model": "m", "kl_coef": 0.0}]
    config = on_policy_of({"ema_decay": 0.9, "teachers": teachers})
    assert pair_settings(config, None).teachers == ()


def test_settings_ask_for_the_best_tokens_of_teachers_that_give_them() -> None:
    far = {"kind": "vllm", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    teachers = [
        {"name": "near", "model": "embedded:teacher"},
        {"name": "few", **far, "top_k": 5},
        {"name": "far", **far, "routes": ["a"]},
        {"name": "echo", **far, "kind": "echo", "routes": ["b"]},
    ]
    config = on_policy_of({"teachers": teachers, "divergence": [], "group_size": 4, "num_steps": 3})
    settings = pair_settings(config, None)
    assert [teacher.top_k for teacher in settings.teachers] == [20, 5, 20, None]
    assert settings.group_size == 1
    # It travels to the training process as JSON.
    assert OnPolicyConfig.model_validate_json(settings.model_dump_json()) == settings


def test_a_vocabulary_that_is_shifted_costs_more_than_a_guess(
    measured: Measured, tmp_path: Path, full_student: StudentConfig
) -> None:
    from stillhouse.chat.tokenizer import load_tokenizer

    model = load_model("embedded:teacher", device="cpu")
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight.copy_(weight.roll(1, 0))
    model.save_pretrained(tmp_path / "shifted")
    load_tokenizer("embedded:teacher").save_pretrained(tmp_path / "shifted")
    figures = measured({"name": "shifted", "model": str(tmp_path / "shifted")})
    agreement = only(figures).agreement
    assert agreement is not None
    assert agreement.nll > math.log(figures.student.vocabulary)
    assert agreement.differing is not None
    assert agreement.differing > 0.95
