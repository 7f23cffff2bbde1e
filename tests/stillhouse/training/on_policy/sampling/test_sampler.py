from dataclasses import replace

import pytest
import torch

from stillhouse.config import OnPolicyConfig, StudentConfig, ToolsConfig
from stillhouse.serving.generator import Generator
from stillhouse.serving.score import score_tokens
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.training.student.load import load_student
from stillhouse.training.student.student import Student
from stillhouse.types import Prompt, StopReason


@pytest.fixture(scope="module")
def student() -> Student:
    """Knows how to call the calculator, so that there is tool output to mask."""
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


@pytest.fixture
def toolbox(calculator: ToolsConfig) -> Toolbox:
    return Toolbox.from_config(calculator)


def sample(
    student: Student, toolbox: Toolbox, prompts: list[Prompt], *, context: int = 512, step: int = 0, **config: object
) -> list[SampledTrajectory]:
    settings = OnPolicyConfig.model_validate({"max_tokens": 96, "max_turns": 5, **config})
    sampler = Sampler(student.tokenizer, toolbox, settings, context)
    return sampler.sample(Generator(student.causal_lm, max_batch=8), prompts, step)


def test_lists_are_aligned_and_log_probs_belong_to_sampled_tokens(
    student: Student, toolbox: Toolbox, prompts: list[Prompt]
):
    trajectories = sample(student, toolbox, prompts)
    scores = score_tokens(student.causal_lm, [trajectory.token_ids for trajectory in trajectories])
    for trajectory, rescored in zip(trajectories, scores, strict=True):
        assert len(trajectory.token_ids) == len(trajectory.loss_mask) == len(trajectory.sampling_logprobs)
        for sampled, logprob, expected in zip(
            trajectory.loss_mask, trajectory.sampling_logprobs, rescored, strict=True
        ):
            assert logprob == (pytest.approx(expected, abs=1e-4) if sampled else 0.0)


def test_mask_marks_what_was_sampled_and_never_tool_output(student: Student, toolbox: Toolbox, prompts: list[Prompt]):
    trajectories = sample(student, toolbox, prompts)
    assert sum(trajectory.num_tool_calls for trajectory in trajectories) > 0
    for trajectory in trajectories:
        pairs = list(zip(trajectory.token_ids, trajectory.loss_mask, strict=True))
        sampled = student.tokenizer.decode([token for token, mask in pairs if mask])
        given = student.tokenizer.decode([token for token, mask in pairs if not mask])
        assert "<tool_response>" not in sampled
        assert sampled.count("<|im_end|>") == trajectory.num_turns - (trajectory.stop_reason == StopReason.LENGTH)
        results = [message for message in trajectory.messages if message["role"] == "tool"]
        assert given.count("<tool_response>") == len(results)
        for result in results:
            assert f"<tool_response>\n{result['content']}\n</tool_response>" in given


def test_sequence_is_the_conversation_as_the_template_renders_it(
    student: Student, toolbox: Toolbox, prompts: list[Prompt]
):
    for trajectory in sample(student, toolbox, prompts, temperature=0.01):
        if trajectory.stop_reason == StopReason.ANSWERED:
            rendered = student.tokenizer.apply_chat_template(
                trajectory.messages, tools=trajectory.toolbox.schemas(), tokenize=False
            )
            assert student.tokenizer.decode(trajectory.token_ids) == rendered.removesuffix("\n")


def test_same_seed_and_step_give_the_same_bits_another_step_does_not(
    student: Student, toolbox: Toolbox, prompts: list[Prompt]
):
    one, same, other = (sample(student, toolbox, prompts, step=step) for step in (3, 3, 4))
    assert [t.token_ids for t in one] == [t.token_ids for t in same]
    assert [t.sampling_logprobs for t in one] == [t.sampling_logprobs for t in same]
    assert [t.token_ids for t in one] != [t.token_ids for t in other]


def test_cut_completion_ends_the_trajectory_and_is_kept(student: Student, toolbox: Toolbox, prompts: list[Prompt]):
    for trajectory in sample(student, toolbox, prompts, max_tokens=4):
        assert trajectory.stop_reason == StopReason.LENGTH
        assert trajectory.loss_mask[-4:] == [True] * 4


def test_last_allowed_turn_that_still_calls_ends_with_what_was_sampled(
    student: Student, toolbox: Toolbox, prompts: list[Prompt]
):
    trajectories = sample(student, toolbox, prompts, max_turns=1)
    stopped = [trajectory for trajectory in trajectories if trajectory.stop_reason == StopReason.MAX_TURNS]
    assert stopped
    for trajectory in stopped:
        assert trajectory.num_turns == 1
        assert trajectory.loss_mask[-1]


def test_full_context_ends_the_trajectory(student: Student, toolbox: Toolbox, prompts: list[Prompt]):
    longest_prompt = max(len(t.token_ids) for t in sample(student, toolbox, prompts, max_tokens=1)) - 1
    context = longest_prompt + 30
    trajectories = sample(student, toolbox, prompts, context=context)
    assert any(trajectory.stop_reason == StopReason.CONTEXT_OVERFLOW for trajectory in trajectories)
    for trajectory in trajectories:
        assert len(trajectory.token_ids) <= context
        assert trajectory.loss_mask[-1]


def test_tool_that_the_prompt_does_not_offer_is_not_run(student: Student, toolbox: Toolbox, prompts: list[Prompt]):
    bare = [replace(prompt, tools=[]) for prompt in prompts]
    trajectories = sample(student, toolbox, bare)
    assert sum(trajectory.num_tool_calls for trajectory in trajectories) > 0
    for trajectory in trajectories:
        assert "calculator(" not in student.tokenizer.decode(trajectory.token_ids).partition("<|im_end|>")[0]
        assert trajectory.num_tool_errors == trajectory.num_tool_calls
