import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from stillhouse.errors import TrainingError
from stillhouse.serving.generation import Generation
from stillhouse.serving.generator import Generator
from stillhouse.tools import tool
from stillhouse.tools.calculator import calculator
from stillhouse.tools.context import ToolArgs
from stillhouse.tools.decorator import Tool
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata, StopReason
from tests.stillhouse.training.sections import on_policy_of

Prompts = list[Prompt]
Sample = Callable[..., list[SampledTrajectory]]


@pytest.fixture
def sample(student: Student) -> Sample:
    """Samples the student, which knows how to call the calculator: there is tool output to mask."""

    def made(
        prompts: Prompts, *, tools: Sequence[Tool] = (calculator,), context: int = 512, step: int = 0, **config: object
    ) -> list[SampledTrajectory]:
        settings = SamplingSettings.of(on_policy_of({"max_tokens": 96, "max_turns": 5, **config}))
        sampler = Sampler(student.tokenizer, Toolbox(tools), settings, context)
        return sampler.sample(Generator(student.causal_lm, max_batch=8), prompts, step)

    return made


def test_mask_marks_what_was_sampled_and_never_tool_output(student: Student, sample: Sample, prompts: Prompts):
    trajectories = sample(prompts[:8])
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


def test_sequence_is_the_conversation_as_the_template_renders_it(student: Student, sample: Sample, prompts: Prompts):
    trajectories = sample(prompts[:6], temperature=0.01)
    answered = [made for made in trajectories if made.stop_reason == StopReason.ANSWERED and made.num_turns > 1]
    assert answered
    for trajectory in answered:
        rendered = student.tokenizer.apply_chat_template(trajectory.messages, tools=trajectory.tools, tokenize=False)
        assert student.tokenizer.decode(trajectory.token_ids) == rendered.removesuffix("\n")


def test_same_seed_and_step_give_the_same_bits_another_step_does_not(sample: Sample, prompts: Prompts):
    first, same, other = (
        [(made.token_ids, made.sampling_logprobs) for made in sample(prompts[:6], step=step)] for step in (3, 3, 4)
    )
    assert first == same
    assert [ids for ids, _ in first] != [ids for ids, _ in other]


@pytest.mark.parametrize(
    ("settings", "reason"), [({"max_tokens": 4}, StopReason.LENGTH), ({"max_turns": 1}, StopReason.MAX_TURNS)]
)
def test_a_cut_completion_and_a_last_turn_that_still_calls_end_with_the_sampled_tokens(
    sample: Sample, prompts: Prompts, settings: dict[str, int], reason: StopReason
):
    ended = [made for made in sample(prompts[:8], **settings) if made.stop_reason == reason]
    assert ended
    for trajectory in ended:
        assert trajectory.num_turns == 1
        assert trajectory.loss_mask[-4:] == [True] * 4


def test_full_context_ends_the_trajectory(sample: Sample, prompts: Prompts):
    longest_prompt = max(len(t.token_ids) for t in sample(prompts, max_tokens=1)) - 1
    context = longest_prompt + 30
    trajectories = sample(prompts, context=context)
    assert any(trajectory.stop_reason == StopReason.CONTEXT_OVERFLOW for trajectory in trajectories)
    for trajectory in trajectories:
        assert len(trajectory.token_ids) <= context
        assert trajectory.loss_mask[-1]


def test_tool_that_the_prompt_does_not_offer_is_not_run(student: Student, sample: Sample, prompts: Prompts):
    bare = [replace(prompt, tools=[]) for prompt in prompts[:8]]
    trajectories = sample(bare)
    assert sum(trajectory.num_tool_calls for trajectory in trajectories) > 0
    for trajectory in trajectories:
        assert "calculator(" not in student.tokenizer.decode(trajectory.token_ids).partition("<|im_end|>")[0]
        assert trajectory.num_tool_errors == trajectory.num_tool_calls


def test_turns_that_would_be_tokenised_otherwise_are_counted_and_kept_as_sampled(
    student: Student, sample: Sample, prompts: Prompts
):
    wild = sample(prompts[:4], temperature=4.0, max_tokens=24)
    assert sum(trajectory.num_drifted_turns for trajectory in wild) > 0
    for trajectory in wild:
        first = trajectory.loss_mask.index(True)
        sampled = trajectory.token_ids[first : first + 24]
        again = student.tokenizer(student.tokenizer.decode(sampled), add_special_tokens=False)["input_ids"]
        if trajectory.num_turns == 1:
            assert trajectory.num_drifted_turns == (again != sampled)
    greedy = sample(prompts[:4], temperature=1e-3)
    assert sum(trajectory.num_drifted_turns for trajectory in greedy) == 0


def test_groups_are_handed_on_as_they_end_and_no_more_run_at_once_than_may(student: Student, prompts: Prompts):
    class Counting(Generator):
        most = 0

        def step(self) -> list[tuple[int, Generation]]:
            self.most = max(self.most, self.num_active)
            return super().step()

    config = SamplingSettings.of(on_policy_of({"max_tokens": 48, "group_size": 3, "max_concurrent": 4}))
    generator = Counting(student.causal_lm, max_batch=64)
    ended: list[tuple[list[SampledTrajectory], int]] = []
    trajectories = Sampler(student.tokenizer, Toolbox([calculator]), config, 512).sample(
        generator, prompts[:5], 0, lambda group: ended.append((group, generator.num_active))
    )
    assert generator.most == 4
    groups = {group[0].prompt_id: group for group, _ in ended}
    assert [groups[prompt.id] for prompt in prompts[:5]] == [trajectories[i : i + 3] for i in range(0, 15, 3)]
    assert len(ended) == 5
    assert all(trajectory.stop_reason is not None for group, _ in ended for trajectory in group)
    assert any(others for _, others in ended[:-1]), "others still decode when the first groups have ended"


def test_sampling_fewer_at_once_gives_the_same_tokens(sample: Sample, prompts: Prompts):
    few, many = (sample(prompts[:3], group_size=2, max_concurrent=n) for n in (2, 64))
    assert [made.token_ids for made in few] == [made.token_ids for made in many]


def test_tools_of_a_turn_run_together_and_know_whose_call_it_is(
    student: Student, prompts: Prompts, metadata: dict[str, PromptMetadata]
):
    meeting = threading.Barrier(2)
    calls: list[ToolArgs] = []

    @tool
    def calculator(expression: str, args: ToolArgs) -> str:
        """Waits for another call.

        Args:
            expression: ignored.
        """
        calls.append(args)
        meeting.wait(120)
        return "7"

    config = SamplingSettings.of(on_policy_of({"max_tokens": 96, "max_turns": 2, "group_size": 2, "temperature": 1e-3}))
    known = {key: replace(entry, metadata={"shop": key}) for key, entry in metadata.items()}
    sampler = Sampler(student.tokenizer, Toolbox([calculator]), config, 512, metadata=known)
    trajectories = sampler.sample(Generator(student.causal_lm), prompts[:1], 0)
    assert [trajectory.num_tool_calls for trajectory in trajectories] == [1, 1]
    assert [trajectory.num_tool_errors for trajectory in trajectories] == [0, 0]
    assert {call.sample_index for call in calls} == {0, 1}
    assert {(call.prompt_id, call.metadata["shop"]) for call in calls} == {(prompts[0].id, prompts[0].id)}


def test_calls_that_cannot_be_run_are_counted_apart_from_tools_that_fail(sample: Sample, prompts: Prompts):
    @tool
    def calculator(expression: str) -> str:
        """Fails.

        Args:
            expression: ignored.
        """
        raise ValueError(expression)

    failing = sample(prompts[:4], tools=[calculator], temperature=1e-3)
    assert sum(trajectory.num_tool_errors for trajectory in failing) > 0
    assert sum(trajectory.num_invalid_tool_calls for trajectory in failing) == 0
    unknown = sample(prompts[:4], tools=[], temperature=1e-3)
    calls = sum(trajectory.num_tool_calls for trajectory in unknown)
    assert sum(trajectory.num_invalid_tool_calls for trajectory in unknown) == calls > 0


def test_template_that_rewrites_an_earlier_turn_stops_the_training(student: Student, prompts: Prompts):
    tokenizer = copy.deepcopy(student.tokenizer)
    tokenizer.chat_template = "{%- if messages | length > 2 %}go on{% endif -%}" + tokenizer.chat_template
    config = SamplingSettings.of(on_policy_of({"max_tokens": 96, "temperature": 1e-3}))
    with pytest.raises(TrainingError, match=rf"{prompts[0].id}, turn 2, after \d+ tokens: .*prefix preserving"):
        Sampler(tokenizer, Toolbox([calculator]), config, 512).sample(Generator(student.causal_lm), prompts[:1], 0)
