from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from stillhouse.config import RolloutsConfig
from stillhouse.dataset.difficulty.pass_rate import pass_rates, student_prompts, student_rollouts
from stillhouse.dataset.difficulty.rows import write_difficulty
from stillhouse.types import PromptMetadata, StopReason, Trajectory

MakeTrajectory = Callable[..., Trajectory]


def about(number: int, expected: str | None = "5") -> PromptMetadata:
    return PromptMetadata(f"prompt-{number}", expected, None, "numeric", {})


def test_each_distinct_prompt_is_asked_once_with_its_own_tools_and_system_prompt(
    make_trajectory: MakeTrajectory,
) -> None:
    first = make_trajectory(0)
    with_system = make_trajectory(1)
    with_system.messages.insert(0, {"role": "system", "content": "Be brief."})
    prompts = student_prompts([first, replace(first, sample_index=1), replace(with_system, tools=[])])
    assert list(prompts) == ["prompt-0", "prompt-1"]
    assert [message["role"] for message in prompts["prompt-1"].messages] == ["system", "user"]
    assert prompts["prompt-0"].messages == first.messages[:1]
    assert (prompts["prompt-0"].tools, prompts["prompt-1"].tools) == (["calculator"], [])
    assert prompts["prompt-0"].id != prompts["prompt-1"].id


def test_the_rate_is_the_share_of_right_answers_among_the_verified_ones(make_trajectory: MakeTrajectory) -> None:
    prompts = student_prompts([make_trajectory(number) for number in range(3)])

    def answer(number: int, text: str, stop_reason: StopReason = StopReason.ANSWERED) -> Trajectory:
        return make_trajectory(number, prompt_id=prompts[f"prompt-{number}"].id, answer=text, stop_reason=stop_reason)

    sampled = [
        answer(0, "5"),
        answer(0, "6"),
        answer(0, "It is 5."),
        answer(0, "5", StopReason.LENGTH),
        answer(0, "5", StopReason.ERROR),
        answer(1, "5"),
        answer(2, "5", StopReason.TIMEOUT),
    ]
    metadata = {"prompt-0": about(0), "prompt-1": about(1, None), "prompt-2": about(2)}
    assert pass_rates(sampled, prompts, metadata) == {"prompt-0": 0.5}
    assert pass_rates(sampled, prompts, {}) == {}


def test_the_student_is_sampled_within_the_bounds_of_the_teacher() -> None:
    asked = student_rollouts(RolloutsConfig(max_tokens=77, max_turns=3, temperature=0.0, num_samples=9), 4)
    assert (asked.num_samples, asked.max_tokens, asked.max_turns, asked.temperature) == (4, 77, 3, 1.0)


def test_the_file_has_a_row_for_each_trajectory_in_order(tmp_path: Path) -> None:
    path = tmp_path / "difficulty.parquet"
    assert write_difficulty(path, [(1.5, None), (None, 0.25), (None, None)]) == 3
    assert pq.read_table(path).to_pydict() == {
        "student_nll": [1.5, None, None],
        "student_pass_rate": [None, 0.25, None],
    }
