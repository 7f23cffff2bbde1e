import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stillhouse.config import RolloutsConfig
from stillhouse.rollouts import EverySample, UntilAccepted
from stillhouse.types import Prompt, StopReason, Trajectory
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{index}", [{"role": "user", "content": f"question {index}"}]) for index in range(count)]


def ended(prompt: Prompt, sample_index: int) -> Trajectory:
    return Trajectory(f"{prompt.id}/{sample_index}", prompt.id, sample_index, [], [], [], StopReason.ANSWERED, "m")


def drawn(plan: EverySample | UntilAccepted) -> list[tuple[str, int]]:
    pairs = []
    while (pair := plan.next()) is not None:
        pairs.append((pair[0].id, pair[1]))
    return pairs


async def accept_all(_trajectory: Trajectory) -> bool:
    return True


def test_every_sample_is_drawn_by_prompt_and_until_accepted_by_sample_and_no_more_than_could_be_needed() -> None:
    plan = EverySample(prompts(2), 2)
    assert plan.total == 4
    assert drawn(plan) == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
    few = UntilAccepted(prompts(10), 4, target=3, per_prompt=1, max_candidates=None, accepts=accept_all)
    assert drawn(few) == [("p0", 0), ("p1", 0), ("p2", 0)]
    many = UntilAccepted(prompts(2), 2, target=100, per_prompt=None, max_candidates=None, accepts=accept_all)
    assert drawn(many) == [("p0", 0), ("p1", 0), ("p0", 1), ("p1", 1)]


def test_a_prompt_that_gave_what_it_should_is_left_alone_and_one_that_failed_is_asked_again() -> None:
    async def accepts(trajectory: Trajectory) -> bool:
        return trajectory.prompt_id == "p0"

    async def run() -> None:
        pair = plan.next()
        assert pair is not None
        await plan.finished(ended(*pair))

    plan = UntilAccepted(prompts(2), 3, target=5, per_prompt=1, max_candidates=None, accepts=accepts)
    for _ in range(2):
        asyncio.run(run())
    assert drawn(plan) == [("p1", 1)]


@given(
    num_prompts=st.integers(1, 8), num_samples=st.integers(1, 4), target=st.integers(1, 20),
    per_prompt=st.none() | st.integers(1, 4), max_candidates=st.none() | st.integers(1, 20),
    verdicts=st.lists(st.booleans(), min_size=32, max_size=32), data=st.data(),
)  # fmt: skip
def test_whatever_is_accepted_the_target_is_met_exactly_or_everything_was_tried(
    num_prompts: int, num_samples: int, target: int, per_prompt: int | None, max_candidates: int | None,
    verdicts: list[bool], data: Any,
) -> None:  # fmt: skip
    remaining = iter(verdicts)
    accepted: Counter[str] = Counter()
    started: Counter[str] = Counter()

    async def accepts(trajectory: Trajectory) -> bool:
        verdict = next(remaining)
        accepted[trajectory.prompt_id] += verdict
        return verdict

    plan = UntilAccepted(
        prompts(num_prompts), num_samples, target=target, per_prompt=per_prompt, max_candidates=max_candidates,
        accepts=accepts,
    )  # fmt: skip
    running: list[tuple[Prompt, int]] = []
    while True:
        pair = plan.next()
        if pair is not None:
            assert pair[1] == started[pair[0].id]
            started[pair[0].id] += 1
            running.append(pair)
        if running and (pair is None or data.draw(st.booleans())):
            asyncio.run(plan.finished(ended(*running.pop(data.draw(st.integers(0, len(running) - 1))))))
        elif pair is None:
            break

    assert accepted.total() <= target
    assert max(accepted.values(), default=0) <= (per_prompt or num_samples)
    assert started.total() <= (max_candidates or num_prompts * num_samples)
    assert plan.num_accepted == accepted.total()
    assert plan.num_started == started.total()
    if accepted.total() < target and started.total() != max_candidates:
        for index in range(num_prompts):
            assert started[f"p{index}"] == num_samples or accepted[f"p{index}"] == per_prompt


def test_the_engine_stops_asking_once_it_has_what_was_wanted(
    collect: Callable[..., Any], make_prompts: Callable[..., list[Prompt]]
) -> None:
    """Every third answer is right: the fifth right one ends it, and no request is sent that was not needed."""

    def script(request: ReceivedRequest) -> Reply:
        number = int(request.body["messages"][-1]["content"].split()[-1])
        return Reply(completion("right" if number % 3 == 0 else "wrong"), delay_s=0.01)

    async def accepts(trajectory: Trajectory) -> bool:
        return trajectory.messages[-1]["content"] == "right"

    with SimulatedProvider(script) as provider:
        plan = UntilAccepted(make_prompts(60), 1, target=5, per_prompt=1, max_candidates=None, accepts=accepts)
        got = collect(provider.url, [], plan=plan, config=RolloutsConfig())
        right = [row for row in got.trajectories if row.messages[-1]["content"] == "right"]
        assert len(right) == 5
        assert len(provider.ledger) == len(got.trajectories) <= 15
