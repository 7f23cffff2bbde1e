"""Figures in, findings out: what each figure leads to, and the remedy that it names."""

from dataclasses import replace
from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.pair import PairFinding, verdict_of
from stillhouse.pair.better import better_finding
from stillhouse.pair.cost import may_take_minutes, rollouts_finding, training_finding
from stillhouse.pair.reading import (
    ends_finding,
    opening_finding,
    reasoning_finding,
    rendering_finding,
    student_ends_finding,
)
from stillhouse.pair.scores import agreement_finding, vocabulary_finding
from stillhouse.training.pair.figures import (
    Agreement,
    EndScores,
    PairFigures,
    RenderingFigures,
    StudentFigures,
    TeacherFigures,
    read_figures,
)

STUDENT = StudentFigures(
    num_trajectories=10, num_tokens=200, num_inputs=600, ended_share=0.9, nll=0.8, vocabulary=1000, opening="none",
    sampling_s=2.0, forward_s=0.5,
)  # fmt: skip
AGREEMENT = Agreement(200, kl=0.4, worst_share=0.3, nll=1.2, top_k=20, overlap=0.6, differing=0.1)
TEACHER = TeacherFigures(
    "big", "local", "ids", opening="none", agreement=AGREEMENT, ends=EndScores(9, 0.9, 0.8),
    rendering=RenderingFigures(differs=False), scoring_s=1.0,
)  # fmt: skip


def answered(rights: str) -> dict[Any, dict[str, float]]:
    return {"accuracy": {f"p{place}": float(right) for place, right in enumerate(rights)}}


@pytest.mark.parametrize(
    ("teacher", "student", "level", "says"),
    [
        pytest.param("1" * 20, "01" * 10, "fine", "accuracy 100% against the student's 50%", id="better"),
        pytest.param("01" * 10, "1" * 20, "no", "it is worse", id="worse"),
        pytest.param("01" * 10, "10" * 10, "unknown", "not shown to be better", id="alike"),
        pytest.param("0" * 20, "0" * 20, "unknown", "not shown to be better", id="none right"),
        pytest.param("", "", "unknown", "give prompts an expected_answer", id="nothing to verify"),
    ],
)
def test_the_interval_of_the_paired_difference_decides(teacher: str, student: str, level: str, says: str) -> None:
    finding = better_finding("big: better", answered(teacher), answered(student))
    assert (finding.level, says in finding.detail) == (level, True), finding


def test_rewards_decide_where_no_answer_is_verified() -> None:
    low, high = ({"reward": {f"p{place}": value + place / 100 for place in range(20)}} for value in (0.1, 0.7))
    finding = better_finding("big: better", low, high)
    assert (finding.level, finding.detail.startswith("reward 0.195 against")) == ("no", True), finding


@pytest.mark.parametrize(
    ("student", "agreement", "level", "says"),
    [
        pytest.param({}, {}, "fine", "1000 ids shared", id="healthy"),
        pytest.param({}, {"nll": 15.0, "differing": 0.99}, "no", "the ids mean something else", id="shifted"),
        pytest.param({}, {"nll": 4.5, "differing": 0.97}, "no", "differ at 97%", id="shifted, flat teacher"),
        pytest.param({}, {"nll": 4.5, "differing": 0.4}, "fine", "", id="far apart"),
        pytest.param({}, {"nll": 8.0, "differing": None, "overlap": None, "top_k": None}, "no", "", id="no best"),
        pytest.param({"nll": 6.5}, {"nll": 7.5}, "change", "Train it with SFT first", id="random student"),
    ],
)
def test_tokens_that_cost_more_than_a_guess_are_another_vocabularys(
    student: dict[str, Any], agreement: dict[str, Any], level: str, says: str
) -> None:
    teacher = replace(TEACHER, agreement=replace(AGREEMENT, **agreement))
    finding = vocabulary_finding(replace(STUDENT, **student), teacher)
    assert (finding.level, says in finding.detail) == (level, True), finding


def test_a_teacher_that_refuses_has_its_reason_as_its_only_finding() -> None:
    teacher = TeacherFigures("big", "local", "ids", refusal="teacher 'x' does not share the student's vocabulary")
    finding = vocabulary_finding(STUDENT, teacher)
    assert (finding.level, finding.detail) == ("no", teacher.refusal)
    others = (agreement_finding(teacher), rendering_finding(teacher), ends_finding(teacher, comes_after_sft=False))
    assert (*others, opening_finding(STUDENT, teacher)) == (None,) * 4


def test_a_teacher_without_prompts_among_those_measured_on_is_no_alarm() -> None:
    teacher = TeacherFigures("big", "local", "ids")
    finding = vocabulary_finding(STUDENT, teacher)
    assert (finding.level, "routed" in finding.detail) == ("unknown", True)
    assert (rendering_finding(teacher), ends_finding(teacher, comes_after_sft=False)) == (None, None)


@pytest.mark.parametrize(
    ("changes", "level", "says"),
    [
        ({}, "fine", "both templates render alike"),
        ({"rendering": RenderingFigures(True, 0.01)}, "fine", "+0.010 nats"),
        ({"rendering": RenderingFigures(True, 0.287)}, "change", "set `template: own`"),
        ({"rendering": RenderingFigures(True, -0.5)}, "change", "chat_template is not the one"),
        ({"rendering": None}, "unknown", "its tokenizer is not at hand"),
        ({"rendering": None, "template_problem": "it refuses tools"}, "unknown", "it refuses tools"),
        ({"rendering": None, "reads_own_template": True}, "fine", "its own template"),
    ],
)
def test_the_rendering_is_judged_by_nats_a_token(changes: dict[str, Any], level: str, says: str) -> None:
    finding = rendering_finding(replace(TEACHER, **changes))
    assert finding is not None
    assert (finding.level, says in finding.detail) == (level, True), finding


@pytest.mark.parametrize(
    ("changes", "comes_after_sft", "level"),
    [
        ({}, False, "fine"),
        ({"ends": EndScores(9, 0.9, 0.01)}, False, "change"),
        ({"ends": EndScores(9, 0.02, 0.01)}, False, "fine"),
        ({"ends": None}, False, "unknown"),
        ({"stop_warning": "they stop at 0 and 2. Train it"}, False, "fine"),
        ({"stop_warning": "they stop at 0 and 2. Train it", "ends": None}, False, "change"),
        ({"stop_warning": "they stop at 0 and 2. Train it", "ends": EndScores(9, 0.9, 0.01)}, False, "change"),
        ({"stop_warning": "they stop at 0 and 2. Train it", "ends": EndScores(9, 0.9, 0.01)}, True, "fine"),
        ({"ends": EndScores(9, 0.9, 0.01)}, True, "change"),
    ],
)
def test_ends_are_judged_by_the_teachers_probability_of_them(
    changes: dict[str, Any], comes_after_sft: bool, level: str
) -> None:
    finding = ends_finding(replace(TEACHER, **changes), comes_after_sft=comes_after_sft)
    assert finding is not None
    assert finding.level == level, finding


@pytest.mark.parametrize(
    ("share", "comes_after_sft", "level"), [(0.9, 0, "fine"), (0.1, 0, "change"), (0.1, 1, "fine")]
)
def test_a_student_that_never_ends_needs_sft(share: float, comes_after_sft: bool, level: str) -> None:
    finding = student_ends_finding(replace(STUDENT, ended_share=share), comes_after_sft=comes_after_sft)
    assert finding.level == level, finding


def test_thinking_that_one_prompt_opens_and_the_other_does_not_is_a_change() -> None:
    alike = opening_finding(STUDENT, TEACHER)
    assert alike is not None
    assert alike.level == "fine"
    other = opening_finding(STUDENT, replace(TEACHER, opening="open"))
    assert other is not None
    assert (other.level, "enable_thinking: false" in other.detail) == ("change", True)
    assert opening_finding(STUDENT, replace(TEACHER, opening=None)) is None


@pytest.mark.parametrize(
    ("student", "teacher", "comes_after_sft", "level"),
    [(0.0, 0.1, 0, "fine"), (0.0, 1.0, 0, "change"), (0.0, 1.0, 1, "fine"), (1.0, 0.0, 1, "change")],
)
def test_reasoning_of_one_alone_is_a_change_unless_sft_teaches_it(
    student: float, teacher: float, comes_after_sft: bool, level: str
) -> None:
    finding = reasoning_finding("big: reasoning", student, teacher, comes_after_sft=comes_after_sft)
    assert finding.level == level, finding


def test_the_training_costs_what_its_trajectories_cost_here() -> None:
    config = OnPolicyConfig(num_steps=10, prompts_per_step=6)
    detail = training_finding(config, PairFigures(STUDENT, (TEACHER,))).detail
    assert "about 27 s at this speed: sampling 12 s, scoring 6 s, training 9 s" in detail
    assert "60 trajectories of 20 sampled tokens, 3,600 tokens" in detail


def test_rollouts_cost_what_the_answers_cost_or_nobody_knows() -> None:
    assert "about $10.00 for 1,000 rollouts" in rollouts_finding([0.01, 0.01], 1000).detail
    assert rollouts_finding([0.01, None], 1000).level == "unknown"


def test_only_a_training_that_may_take_minutes_is_examined(tmp_path: Any) -> None:
    little = OnPolicyConfig(num_steps=60, prompts_per_step=32, max_tokens=48, max_turns=6)
    much = little.model_copy(update={"num_steps": 2000})
    models = ("embedded:student", ["embedded:teacher"])
    assert (may_take_minutes(little, *models), may_take_minutes(much, *models)) == (False, True)
    assert may_take_minutes(little, "Qwen/Qwen3-0.6B", []), "its size is not known here"
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "embedded:student"}')
    assert not may_take_minutes(little, str(tmp_path), []), "an adapter is as large as its base"


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [(["fine", "unknown"], "go"), (["fine", "change"], "go with this changed"), (["change", "no"], "no"), ([], "go")],
)
def test_the_gravest_finding_is_the_verdict(levels: list[Any], verdict: str) -> None:
    assert verdict_of(PairFinding("a", level, "b") for level in levels) == verdict


def test_figures_are_read_as_they_were_written(tmp_path: Any) -> None:
    figures = PairFigures(STUDENT, (TEACHER, TeacherFigures("far", "vllm", "bytes", refusal="no")))
    figures.write(tmp_path)
    assert read_figures(tmp_path) == figures
