import logging
from collections.abc import Callable
from contextlib import nullcontext
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from stillhouse.chat.refs import resolve_model
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher, Teacher
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata, Sample, StopReason, Turn

Load = Callable[..., TeacherRouter]
FULL = StudentConfig(parameters="full", dtype="float32")
LORA = StudentConfig(parameters="lora", lora_rank=4, dtype="float32")
NEAR = {"name": "near", "model": "embedded:teacher"}


def scores_of(ref: str, requests: list[Sample]) -> list[list[float]]:
    rows = score_tokens(load_model(ref, device="cpu"), [request.token_ids for request in requests])
    return [list(compress(row, request.loss_mask)) for row, request in zip(rows, requests, strict=True)]


def assert_scores(teacher: Teacher | None, ref: str, requests: list[Sample]) -> None:
    assert teacher is not None
    for seen, expected in zip(teacher.start(requests).result(), scores_of(ref, requests), strict=True):
        assert seen.logprobs == pytest.approx(expected, abs=1e-4)


def test_one_teacher_is_the_configs_or_the_one_of_the_rollouts(
    student: Student, requests: list[Sample], load: Load
) -> None:
    teachers = load(student, ref="embedded:student", teacher="embedded:teacher", kl_coef=0.5)
    [teacher] = teachers.by_name.values()
    assert isinstance(teacher, LocalTeacher)
    assert teachers.select(None) is teacher
    assert (teacher.name, teacher.kl_coef) == ("teacher", 0.5)
    assert_scores(teacher, "embedded:teacher", requests)
    teachers = load(student, ref="embedded:student")
    assert_scores(teachers.by_name["teacher"], "embedded:student", requests)
    with pytest.raises(ConfigError, match="no teacher"):
        load(student)


def test_rewards_alone_need_no_teacher(student: Student, load: Load) -> None:
    teachers = load(student, kl_coef=0.0, reward_coef=1.0, group_size=2)
    assert not teachers.by_name
    assert teachers.select(None) is None
    assert teachers.max_context is None


def test_several_teachers_are_loaded_with_their_factors_and_one_of_none_is_not(student: Student, load: Load) -> None:
    listed = [
        {**NEAR, "routes": ["sums"], "kl_coef": 0.25},
        {"name": "same", "model": "embedded:student", "routes": ["poems"]},
        {"name": "idle", "model": "embedded:teacher", "routes": ["code"], "kl_coef": 0.0},
    ]
    teachers = load(student, teachers=listed)
    assert {name: teacher.kl_coef for name, teacher in teachers.by_name.items()} == {"near": 0.25, "same": 1.0}
    assert teachers.select(PromptMetadata("p", None, "code", "exact", {})) is None


@pytest.mark.parametrize("config", [FULL, LORA], ids=["full", "lora"])
def test_the_base_is_what_the_student_was_before_training(
    requests: list[Sample], load: Load, config: StudentConfig
) -> None:
    student = load_student("embedded:student", config, torch.device("cpu"), seed=0)
    teachers = load(student, teachers=[{"name": "self", "kind": "base"}])
    with torch.no_grad():
        for _, parameter in student.trained_parameters():
            parameter.add_(0.05)
    teacher = teachers.by_name["self"]
    assert isinstance(teacher, SelfTeacher if config is LORA else LocalTeacher)
    assert_scores(teacher, "embedded:student", requests)


def test_the_mean_is_swapped_in_only_when_it_scores(student: Student, requests: list[Sample], load: Load) -> None:
    swaps = []

    def averaged() -> nullcontext[None]:
        swaps.append(1)
        return nullcontext()

    teachers = load(student, averaged=averaged, teachers=[{"name": "mean", "kind": "ema"}], ema_decay=0.9)
    assert not swaps
    assert_scores(teachers.by_name["mean"], "embedded:student", requests)
    assert swaps


@pytest.mark.parametrize("kind", ["vllm", "sglang", "echo"])
def test_a_served_teacher_is_tried_and_used(
    student: Student, requests: list[Sample], load: Load, scoring_server: Any, kind: str
) -> None:
    far = {"name": "far", "kind": kind, "model": "big", "base_url": scoring_server.url}
    teachers = load(student, teachers=[far])
    teacher = teachers.by_name["far"]
    assert isinstance(teacher, ServedTeacher)
    assert not isinstance(teacher, ExactTeacher)
    assert teachers.max_context == scoring_server.max_model_len - 1
    assert teacher.start(requests).result()[0].logprobs[0] == scoring_server.truth(requests[0].token_ids, 1)


def test_padded_rows_of_an_embedding_are_no_part_of_what_is_shared(
    student: Student, requests: list[Sample], load: Load, tmp_path: Path
) -> None:
    rows = len(student.head.weight)
    padded = load_model("embedded:student", device="cpu")
    padded.resize_token_embeddings(rows + 11)
    padded.save_pretrained(tmp_path / "padded")
    student.tokenizer.save_pretrained(tmp_path / "padded")
    teachers = load(student, teacher=str(tmp_path / "padded"))
    teacher = teachers.by_name["teacher"]
    assert isinstance(teacher, ExactTeacher)
    sample = requests[1]
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
    student: Student, load: Load, stranger: str, other: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(TrainingError, match="vocabulary"):
        load(student, teacher=stranger)
    settings = {"name": "far", "model": stranger, "alignment": "bytes"}
    messages: list[Any] = [{"role": "user", "content": "How many?"}]
    prompt = render(student.tokenizer, messages, None, add_generation_prompt=True)
    answer = student.tokenizer("Ben has 17 eggs.<|im_end|>", add_special_tokens=False)["input_ids"]
    trajectory = SampledTrajectory(
        "key", "p", 0, [*messages, {"role": "assistant", "content": "Ben has 17 eggs."}], [],
        [Turn("stop", {}, None, "student")], StopReason.ANSWERED, "student", token_ids=prompt + answer,
        loss_mask=[False] * len(prompt) + [True] * len(answer), sampling_logprobs=[],
    )  # fmt: skip
    teachers = load(student, teachers=[settings])
    view = teachers.view(trajectory, None)
    request = Sample(trajectory.token_ids, trajectory.loss_mask, "p", teacher_view=view)
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
        ({**NEAR, "device": "cuda:99"}, "'near': device 'cuda:99'"),
        ({**NEAR, "device": "abacus"}, "'near': device 'abacus'"),
        ({"name": "self", "kind": "base", "alignment": "bytes"}, "'self' of kind 'base'"),
    ],
)
def test_a_device_that_is_not_there_and_other_tokens_of_the_student_itself_are_refused(
    student: Student, load: Load, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(student, teachers=[settings])


@pytest.fixture(scope="module")
def colon(colon_student: str) -> Student:
    """A student that is asked by `User: ... Assistant:`."""
    return load_student(colon_student, FULL, torch.device("cpu"), seed=0)


def test_exchanged_ends_are_no_reason_to_warn_and_others_are(
    colon: Student, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    colon.causal_lm.generation_config.eos_token_id = colon.tokenizer.eos_token_id
    with caplog.at_level(logging.WARNING):
        load(colon, teachers=[{**NEAR, "template": "own"}])
        assert "different stop tokens" not in caplog.text
        load(colon, teachers=[NEAR])
    assert "student and teacher 'near' have different stop tokens" in caplog.text


def test_a_teachers_template_is_told_what_its_settings_say(
    colon: Student, load: Load, sampled: Callable[..., SampledTrajectory], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer("embedded:teacher")
    switch = "{% if add_generation_prompt and not thinks %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    tokenizer.chat_template = f"{tokenizer.chat_template}{switch}"
    folder = str(tmp_path / "hybrid")
    load_model("embedded:teacher", device="cpu").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    messages: list[Any] = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "17"}]
    trajectory = sampled(colon.tokenizer, messages, num_turns=1)
    for thinks, block in ((True, ""), (False, "<think>\n\n</think>\n\n")):
        settings = {"model": folder, "template": "own", "chat_template_kwargs": {"thinks": thinks}}
        view = load(colon, teachers=[NEAR | settings]).view(trajectory, None)
        assert view is not None
        text = f"<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n{block}17<|im_end|>"
        assert tokenizer.decode(view.token_ids) == text


def test_a_teacher_that_ends_another_way_is_warned_of_before_training(
    student: Student, load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "base"
    base = load_model("embedded:student", device="cpu")
    end = student.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    base.generation_config.eos_token_id = base.config.eos_token_id = end
    base.save_pretrained(folder)
    tokenizer = type(student.tokenizer).from_pretrained(resolve_model("embedded:student"))
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(folder)
    with caplog.at_level(logging.WARNING):
        load(student, teacher=str(folder))
    assert "student and teacher 'teacher' have different stop tokens" in caplog.text
