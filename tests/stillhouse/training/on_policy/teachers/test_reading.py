"""Teachers with `template: own` of a student that is asked by `User: ... Assistant:`, and what they score."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from stillhouse.chat.refs import resolve_model
from stillhouse.chat.tokenizer import encode, load_tokenizer
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, Prompt, StopReason

NewTrajectory = Callable[..., SampledTrajectory]
NewTeachers = Callable[..., TeacherRouter]

NEAR = {"name": "near", "model": "embedded:teacher"}
OWN = {**NEAR, "template": "own"}


@pytest.fixture(scope="module")
def colon(colon_student: str) -> Student:
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student(colon_student, config, torch.device("cpu"), seed=0)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[NewTeachers]:
    with ExitStack() as resources:

        def make(student: Student, **teacher: Any) -> TeacherRouter:
            config = OnPolicyConfig.model_validate({"teachers": [teacher]})
            teachers = load_teachers(
                config,
                student,
                default_ref=None,
                work_dir=tmp_path,
                averaged=nullcontext,
                runtime=RuntimeConfig(store=str(tmp_path)),
            )
            resources.callback(teachers.close)
            return teachers

        yield make


@pytest.fixture(scope="module")
def demonstrations(prompts: list[Prompt]) -> list[SampledTrajectory]:
    """What the teacher itself answers, with its calculator."""
    tokenizer, model = load_tokenizer("embedded:teacher"), load_model("embedded:teacher", device="cpu")
    toolbox = Toolbox.from_config(ToolsConfig(builtin=("calculator",)))
    sampler = Sampler(tokenizer, toolbox, SamplingSettings(max_tokens=64, max_turns=6), 512)
    sampled = sampler.sample(Generator(model), prompts, 0)
    answered = [one for one in sampled if one.stop_reason is StopReason.ANSWERED and one.num_turns > 1]
    assert len(answered) > 4
    return answered


def scores(teachers: TeacherRouter, trajectories: list[SampledTrajectory]) -> list[list[float]]:
    """Log-probabilities of the sampled tokens of each trajectory."""
    requests = [
        ScoreRequest(one.token_ids, one.loss_mask, one.prompt_id, teachers.view(one, None)) for one in trajectories
    ]
    [teacher] = teachers.by_name.values()
    answers = teacher.start(requests).result()
    return [list(compress(found.logprobs, one.loss_mask)) for found, one in zip(answers, trajectories, strict=True)]


def from_scratch(messages: list[Message], tools: Any, num_turns: int) -> list[float]:
    """By the teacher of transformers in float64, over the last turns of a conversation in its template."""
    tokenizer: PreTrainedTokenizerBase = load_tokenizer("embedded:teacher")
    model = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:teacher"), dtype=torch.float64).eval()
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    ids = encode(tokenizer, text.removesuffix("\n"))
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    opening = encode(tokenizer, "<|im_start|>assistant\n")
    starts = [at + len(opening) for at in range(len(ids)) if ids[at : at + len(opening)] == opening][-num_turns:]
    end = tokenizer.eos_token_id
    places = [place for start in starts for place in range(start, ids.index(end, start) + 1)]
    return [logprobs[place - 1, ids[place]].item() for place in places]


@pytest.mark.parametrize("is_served", [False, True])
def test_answers_score_as_in_the_whole_conversation_by_the_teachers_template(
    colon: Student,
    load: NewTeachers,
    sampled: NewTrajectory,
    demonstrations: list[SampledTrajectory],
    serve: Callable[[str, str], str],
    is_served: bool,
) -> None:
    settings: dict[str, Any] = dict(OWN)
    if is_served:
        settings |= {"kind": "vllm", "base_url": serve("embedded:teacher", "embedded:teacher")}
    reasoned = [*demonstrations[0].messages]
    for place in (1, 3):
        assert reasoned[place]["role"] == "assistant"
        reasoned[place] = {**reasoned[place], "reasoning_content": "Add them."}
    tools = demonstrations[0].tools
    conversations = [one.messages for one in demonstrations] + [reasoned]
    turns = [sum(message["role"] == "assistant" for message in messages) for messages in conversations]
    trajectories = [
        sampled(colon.tokenizer, messages, tools, num_turns=count)
        for messages, count in zip(conversations, turns, strict=True)
    ]
    found = scores(load(colon, **settings), trajectories)
    for logprobs, messages, count in zip(found, conversations, turns, strict=True):
        assert logprobs == pytest.approx(from_scratch(messages, tools, count), abs=1e-3)


def test_exchanged_ends_are_no_reason_to_warn_and_others_are(
    colon: Student, load: NewTeachers, caplog: pytest.LogCaptureFixture
) -> None:
    colon.causal_lm.generation_config.eos_token_id = colon.tokenizer.eos_token_id
    with caplog.at_level(logging.WARNING):
        load(colon, **OWN)
        assert "different stop tokens" not in caplog.text
        load(colon, **NEAR)
    assert "student and teacher 'near' have different stop tokens" in caplog.text


def test_a_teachers_template_is_told_what_its_settings_say(
    colon: Student, load: NewTeachers, sampled: NewTrajectory, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer("embedded:teacher")
    switch = "{% if add_generation_prompt and not thinks %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    tokenizer.chat_template = f"{tokenizer.chat_template}{switch}"
    folder = str(tmp_path / "hybrid")
    load_model("embedded:teacher", device="cpu").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    messages: list[Message] = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "17"}]
    trajectory = sampled(colon.tokenizer, messages, num_turns=1)
    for thinks, block in ((True, ""), (False, "<think>\n\n</think>\n\n")):
        teachers = load(colon, **{**OWN, "model": folder}, chat_template_kwargs={"thinks": thinks})
        view = teachers.view(trajectory, None)
        assert view is not None
        text = f"<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n{block}17<|im_end|>"
        assert tokenizer.decode(view.token_ids) == text
