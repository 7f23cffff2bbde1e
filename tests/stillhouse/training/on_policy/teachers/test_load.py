import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from stillhouse.chat.refs import resolve_model
from stillhouse.chat.template import render
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher, ScoreRequest, Teacher
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata, StopReason, Turn

FULL = StudentConfig(parameters="full", dtype="float32")
LORA = StudentConfig(parameters="lora", lora_rank=4, dtype="float32")
NEAR = {"name": "near", "model": "embedded:teacher"}


@contextmanager
def loaded(student: Student, work_dir: Path, ref: str | None = None, **config: Any) -> Iterator[TeacherRouter]:
    on_policy = OnPolicyConfig.model_validate(config)
    teachers = load_teachers(
        on_policy,
        student,
        default_ref=ref,
        work_dir=work_dir,
        averaged=nullcontext,
        runtime=RuntimeConfig(store=str(work_dir)),
    )
    yield teachers
    teachers.close()


def scores_of(ref: str, requests: list[ScoreRequest]) -> list[list[float]]:
    rows = score_tokens(load_model(ref, device="cpu"), [request.token_ids for request in requests])
    return [
        [value * sampled for value, sampled in zip(row, request.loss_mask, strict=True)]
        for row, request in zip(rows, requests, strict=True)
    ]


def assert_scores(teacher: Teacher | None, ref: str, requests: list[ScoreRequest]) -> None:
    assert teacher is not None
    for seen, expected in zip(teacher.start(requests).result(), scores_of(ref, requests), strict=True):
        assert seen.logprobs == pytest.approx(expected, abs=1e-4)


def test_one_teacher_is_the_configs_or_the_one_of_the_rollouts(
    student: Student, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    with loaded(student, tmp_path, "embedded:student", teacher="embedded:teacher", kl_coef=0.5) as teachers:
        [teacher] = teachers.by_name.values()
        assert isinstance(teacher, LocalTeacher)
        assert teachers.select(None) is teacher
        assert (teacher.name, teacher.kl_coef) == ("teacher", 0.5)
        assert_scores(teacher, "embedded:teacher", requests)
    with loaded(student, tmp_path, "embedded:student") as teachers:
        assert_scores(teachers.by_name["teacher"], "embedded:student", requests)
    with pytest.raises(ConfigError, match="no teacher that scores tokens"), loaded(student, tmp_path):
        pass


def test_rewards_alone_need_no_teacher(student: Student, tmp_path: Path) -> None:
    with loaded(student, tmp_path, kl_coef=0.0, reward_coef=1.0, group_size=2) as teachers:
        assert not teachers.by_name
        assert teachers.select(None) is None
        assert teachers.max_context is None


def test_several_teachers_score_as_each_does_alone(
    student: Student, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    listed = [
        {**NEAR, "routes": ["sums"], "kl_coef": 0.25},
        {"name": "same", "model": "embedded:student", "routes": ["poems"]},
        {"name": "idle", "model": "embedded:teacher", "routes": ["code"], "kl_coef": 0.0},
    ]
    with loaded(student, tmp_path, teachers=listed) as teachers:
        assert {name: teacher.kl_coef for name, teacher in teachers.by_name.items()} == {"near": 0.25, "same": 1.0}
        refs = {"sums": "embedded:teacher", "poems": "embedded:student"}
        for number, request in enumerate(requests):
            tag = ("sums", "poems", "code")[number % 3]
            teacher = teachers.select(PromptMetadata(request.prompt_id, None, tag, "exact", {}))
            if tag == "code":
                assert teacher is None
            else:
                assert_scores(teacher, refs[tag], [request])


@pytest.mark.parametrize("config", [FULL, LORA], ids=["full", "lora"])
def test_the_base_is_what_the_student_was_before_training(
    requests: list[ScoreRequest], tmp_path: Path, config: StudentConfig
) -> None:
    student = load_student("embedded:student", config, torch.device("cpu"), seed=0)
    with loaded(student, tmp_path, teachers=[{"name": "self", "kind": "base"}]) as teachers:
        with torch.no_grad():
            for _, parameter in student.trained_parameters():
                parameter.add_(0.05)
        teacher = teachers.by_name["self"]
        assert isinstance(teacher, SelfTeacher if config is LORA else LocalTeacher)
        assert_scores(teacher, "embedded:student", requests)


def test_the_mean_is_swapped_in_only_when_it_scores(
    student: Student, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    config = OnPolicyConfig.model_validate({"teachers": [{"name": "mean", "kind": "ema"}], "ema_decay": 0.9})
    swaps = []

    def averaged() -> nullcontext[None]:
        swaps.append(1)
        return nullcontext()

    teachers = load_teachers(
        config,
        student,
        default_ref=None,
        work_dir=tmp_path,
        averaged=averaged,
        runtime=RuntimeConfig(store=str(tmp_path)),
    )
    assert not swaps
    assert_scores(teachers.by_name["mean"], "embedded:student", requests)
    assert swaps


@pytest.mark.parametrize("kind", ["vllm", "sglang", "echo"])
def test_a_served_teacher_is_tried_and_used(
    student: Student, requests: list[ScoreRequest], tmp_path: Path, scoring_server: Any, kind: str
) -> None:
    far = {"name": "far", "kind": kind, "model": "big", "base_url": scoring_server.url}
    with loaded(student, tmp_path, teachers=[far]) as teachers:
        teacher = teachers.by_name["far"]
        assert isinstance(teacher, ServedTeacher)
        assert not isinstance(teacher, ExactTeacher)
        assert teachers.max_context == scoring_server.max_model_len - 1
        assert teacher.start(requests).result()[0].logprobs[1] == scoring_server.truth(requests[0].token_ids, 1)


def test_padded_rows_of_an_embedding_are_no_part_of_what_is_shared(
    student: Student, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    rows = len(student.head.weight)
    padded = load_model("embedded:student", device="cpu")
    padded.resize_token_embeddings(rows + 11)
    padded.save_pretrained(tmp_path / "padded")
    student.tokenizer.save_pretrained(tmp_path / "padded")
    with loaded(student, tmp_path, teacher=str(tmp_path / "padded")) as teachers:
        teacher = teachers.by_name["teacher"]
        assert isinstance(teacher, ExactTeacher)
        sample = ScoredSample(requests[1].token_ids, requests[1].loss_mask, "p")
        reference = teacher.reference([sample])
        assert len(reference.head.weight) == rows + 11
        assert reference.vocabulary == max(student.tokenizer.get_vocab().values()) + 1 <= rows


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory, other: PreTrainedTokenizerBase) -> str:
    """An untrained model with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("stranger")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(other), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    other.save_pretrained(folder)
    return str(folder)


def test_a_teacher_of_another_vocabulary_scores_by_bytes_where_that_is_set(
    student: Student, tmp_path: Path, stranger: str, other: PreTrainedTokenizerBase
) -> None:
    refused = pytest.raises(TrainingError, match="does not share the student's vocabulary")
    with refused, loaded(student, tmp_path, teacher=stranger):
        pass
    settings = {"name": "far", "model": stranger, "alignment": "bytes"}
    messages: list[Any] = [{"role": "user", "content": "How many?"}]
    prompt = render(student.tokenizer, messages, None, add_generation_prompt=True)
    answer = student.tokenizer("Ben has 17 eggs.<|im_end|>", add_special_tokens=False)["input_ids"]
    trajectory = SampledTrajectory(
        "key", "p", 0, [*messages, {"role": "assistant", "content": "Ben has 17 eggs."}], [],
        [Turn("stop", {}, None, "student")], StopReason.ANSWERED, "student", token_ids=prompt + answer,
        loss_mask=[False] * len(prompt) + [True] * len(answer), sampling_logprobs=[],
    )  # fmt: skip
    with loaded(student, tmp_path, teachers=[settings]) as teachers:
        view = teachers.view(trajectory, None)
        request = ScoreRequest(trajectory.token_ids, trajectory.loss_mask, "p", view)
        [(scores, _)] = teachers.by_name["far"].start([request]).result()
    assert view is not None
    text = "<|begin|>user: How many?<|stop|><|begin|>assistant: "
    parts = (text, "Ben has 17 eggs.<|stop|>")
    theirs = [token for part in parts for token in other(part, add_special_tokens=False)["input_ids"]]
    assert view.token_ids == theirs
    [known] = score_tokens(load_model(stranger, device="cpu"), [theirs])
    assert sum(scores) == pytest.approx(sum(known[sum(not sampled for sampled in view.loss_mask) :]), abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**NEAR, "device": "cuda:99"}, "teacher 'near': device 'cuda:99' cannot be used"),
        ({**NEAR, "device": "abacus"}, "teacher 'near': device 'abacus' cannot be used"),
        ({"name": "self", "kind": "base", "alignment": "bytes"}, "'self' of kind 'base' has the student's tokens"),
    ],
)
def test_a_device_that_is_not_there_and_other_tokens_of_the_student_itself_are_refused(
    student: Student, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message), loaded(student, tmp_path, teachers=[settings]):
        pass


def test_a_teacher_that_ends_another_way_is_warned_of_before_training(
    student: Student, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "base"
    base = load_model("embedded:student", device="cpu")
    end = student.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    base.generation_config.eos_token_id = base.config.eos_token_id = end
    base.save_pretrained(folder)
    tokenizer = type(student.tokenizer).from_pretrained(resolve_model("embedded:student"))
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(folder)
    with caplog.at_level(logging.WARNING), loaded(student, tmp_path, teacher=str(folder)):
        pass
    assert "student and teacher 'teacher' have different stop tokens" in caplog.text
