from collections.abc import Callable, Sequence

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.serving.generator import Generator
from stillhouse.tools.calculator import calculator
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.prefix import prefix_tokens
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, StopReason

Sample = Callable[..., list[SampledTrajectory]]


@pytest.fixture
def sample(student: Student) -> Sample:
    """Samples the student, which calls the calculator in most of its trajectories."""

    def made(prompts: Sequence[Prompt], bound: int | None = None, **config: object) -> list[SampledTrajectory]:
        settings = OnPolicyConfig.model_validate({"max_tokens": 96, "max_turns": 5, **config})
        sampler = Sampler(student.tokenizer, Toolbox([calculator]), settings, 512)
        return sampler.sample(Generator(student.causal_lm, max_batch=8), prompts, 0, max_sampled_tokens=bound)

    return made


@pytest.mark.parametrize("bound", [1, 7, 24, 40])
def test_a_prefix_is_the_start_of_the_whole_trajectory_across_its_turns(
    sample: Sample, prompts: list[Prompt], bound: int
) -> None:
    wholes, starts = sample(prompts[:8]), sample(prompts[:8], bound)
    for whole, start in zip(wholes, starts, strict=True):
        assert whole.token_ids[: len(start.token_ids)] == start.token_ids
        assert whole.loss_mask[: len(start.loss_mask)] == start.loss_mask
        assert sum(start.loss_mask) == min(bound, sum(whole.loss_mask))
        is_cut = sum(whole.loss_mask) > bound
        assert start.stop_reason == (StopReason.BUDGET if is_cut else whole.stop_reason)
        assert start.loss_mask[-1] or not is_cut, "nothing that only a further turn reads"
    if bound == 40:
        assert any(start.num_turns > 1 for start in starts)


def test_the_call_of_a_turn_that_uses_the_prefix_up_is_not_run(sample: Sample, prompts: list[Prompt]) -> None:
    whole = next(one for one in sample(prompts) if one.num_tool_calls)
    prompt = next(one for one in prompts if one.id == whole.prompt_id)
    first_turn = whole.loss_mask.index(False, whole.loss_mask.index(True)) - whole.loss_mask.index(True)
    [start] = sample([prompt], first_turn)
    assert (start.num_tool_calls, start.num_turns, start.stop_reason) == (0, 1, StopReason.BUDGET)
    assert start.token_ids == whole.token_ids[: len(start.token_ids)]


def test_a_completion_that_is_cut_by_its_own_bound_ends_as_before(sample: Sample, prompts: list[Prompt]) -> None:
    assert {one.stop_reason for one in sample(prompts[:4], 60, max_tokens=4)} == {StopReason.LENGTH}


def test_a_prefix_grows_in_even_steps_to_the_last_batch() -> None:
    def tokens(num_steps: int, **prefix: int) -> list[int | None]:
        config = OnPolicyConfig.model_validate({"num_steps": num_steps, "num_substeps": 2, "prefix": prefix})
        return [prefix_tokens(config, index) for index in range(config.num_batches)]

    assert tokens(10) == [None] * 5
    assert tokens(10, tokens=16) == [16] * 5
    assert tokens(10, tokens=16, final_tokens=64) == [16, 28, 40, 52, 64]
    assert tokens(2, tokens=16, final_tokens=64) == [64]
