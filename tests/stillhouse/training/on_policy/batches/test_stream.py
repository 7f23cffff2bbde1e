"""Groups that are sampled without a break, by an engine whose order of finishing is a test's."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhouse.config import OnPolicyConfig, ToolsConfig
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.batches.batch import read_batch, write_batch
from stillhouse.training.on_policy.batches.stream import RolloutStream
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt
from tests.stillhouse.training.on_policy.tables import table_of

NUM_PROMPTS = 12
Stream = RolloutStream[list[SampledTrajectory]]


class Engines:
    """One engine, which samples the token 5 with the newest weights, and ends requests in an order of its own."""

    max_context: int | None = None

    def __init__(self, pick: Callable[[int], int]) -> None:
        self._pick = pick
        self._under_way: list[tuple[int, GenerationRequest, int]] = []
        self._version = -1
        self._num_submitted = 0
        self.requests: list[GenerationRequest] = []
        self.is_free = threading.Event()
        self.is_free.set()

    @contextmanager
    def engine(self, version: int) -> Iterator["Engines"]:
        self._version = version
        yield self

    def submit(self, request: GenerationRequest) -> int:
        self.requests.append(request)
        self._under_way.append((self._num_submitted, request, self._version))
        self._num_submitted += 1
        return self._num_submitted - 1

    def step(self) -> list[tuple[int, Generation]]:
        if not self.is_free.wait(0.01) or not self._under_way:
            return []
        handle, _, version = self._under_way.pop(self._pick(len(self._under_way)))
        return [(handle, Generation([5], [-0.5], "length", [version]))]

    def close(self) -> None: ...


def config(max_staleness: int, **settings: Any) -> OnPolicyConfig:
    sizes = {"prompts_per_step": 3, "num_steps": 30, "max_tokens": 1, "max_turns": 1, "max_concurrent": 100}
    return OnPolicyConfig(**{**sizes, "max_staleness": max_staleness, **settings})


@pytest.fixture
def new_stream(student: Student, prompts: list[Prompt], tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    with ExitStack() as stack:

        def make(engines: Engines, settings: OnPolicyConfig, num_prompts: int = NUM_PROMPTS) -> Stream:
            sampler = Sampler(student.tokenizer, Toolbox.from_config(ToolsConfig()), SamplingSettings.of(settings), 512)

            def prompts_of(index: int) -> list[Prompt]:
                size = settings.prompts_per_step
                return [prompts[(index * size + number) % num_prompts] for number in range(size)]

            stream = RolloutStream(sampler, engines, settings, prompts_of, lambda group: group, tmp_path)
            stack.callback(stream.close)
            return stream

        yield make


def trained(stream: Stream, engines: Engines, settings: OnPolicyConfig, indices: range) -> Iterator[list[list[int]]]:
    """Go through batches as a training does; yield each as the versions of the tokens of its groups."""
    for index in indices:
        version = index * settings.updates_per_batch
        with engines.engine(version):
            stream.admit(index, version)
            groups, untaken, _ = stream.take(index)
        assert len({group.prompt.id for group in groups}) == len(groups) == settings.prompts_per_step
        table = table_of([], index=index)
        table.untaken = untaken
        write_batch(stream._folder / f"batch-{index:08d}.parquet", table)
        yield [
            [int(version) for one in group.ready or () for version in one.policy_versions[np.array(one.loss_mask)]]
            for group in groups
        ]


@pytest.mark.parametrize(("max_staleness", "passes"), [(0, 1), (1, 1), (3, 1), (2, 2), (5, 2)])
def test_no_token_is_ever_older_than_allowed_in_whatever_order_groups_finish(
    new_stream: Callable[..., Stream], max_staleness: int, passes: int
) -> None:
    behind: list[int] = []
    for seed in range(4):
        rng = random.Random(seed)
        settings = config(max_staleness, num_passes=passes, max_concurrent=rng.choice([2, 5, 100]), group_size=2)
        engines = Engines(lambda count, rng=rng: rng.choice([0, rng.randrange(count), count - 1]))
        stream = new_stream(engines, settings, rng.choice([3, 5, NUM_PROMPTS]))
        for index, groups in enumerate(trained(stream, engines, settings, range(settings.num_batches))):
            behind += [index * passes - version for versions in groups for version in versions]
        stream.close()
        for path in stream._folder.rglob("*.*"):
            path.unlink()
    assert max(behind) <= max_staleness
    assert (max(behind) > 0) == (max_staleness > 0), "something was sampled ahead"


def test_without_staleness_batches_have_their_own_prompts_in_order(
    new_stream: Callable[..., Stream], prompts: list[Prompt]
) -> None:
    settings = config(0)
    engines = Engines(lambda count: count - 1)
    stream = new_stream(engines, settings)
    for index in range(4):
        stream.admit(index, index)
        groups, _, _ = stream.take(index)
        assert [group.prompt for group in groups] == prompts[3 * index : 3 * index + 3]


def test_short_answers_gain_nothing_and_a_slow_one_is_waited_for_in_time(new_stream: Callable[..., Stream]) -> None:
    settings = config(2)
    engines = Engines(lambda count: min(1, count - 1))
    stream = new_stream(engines, settings)
    batches = trained(stream, engines, settings, range(4))
    assert [len(next(batches)) for _ in range(3)] == [3, 3, 3], "the first request is still under way"
    stream.admit(3, 3)
    first = engines.requests[0].prompt_ids
    taken = [group.ready[0].token_ids[:-1] for group in stream.take(3)[0] if group.ready]
    assert first not in taken


def test_a_killed_training_samples_no_finished_group_again_unless_it_is_too_old(
    new_stream: Callable[..., Stream],
) -> None:
    settings = config(2)
    engines = Engines(lambda count: 0)
    stream = new_stream(engines, settings)
    list(trained(stream, engines, settings, range(2)))
    while len(list((stream._folder / "stream").rglob("*.json"))) < 9:
        engines.is_free.wait(0.01)
    stream.close()
    assert len(engines.requests) == 12, "batch 1 allows three batches ahead"
    again = Engines(lambda count: 0)
    resumed = new_stream(again, settings)
    [groups] = trained(resumed, again, settings, range(2, 3))
    assert groups == [[0], [0], [0]]
    assert all(request.prompt_ids not in [r.prompt_ids for r in engines.requests[:9]] for request in again.requests[3:])
    resumed.close()
    late = Engines(lambda count: 0)
    much_later = new_stream(late, settings)
    before = table_of([], index=6)
    before.untaken = read_batch(much_later._folder / "batch-00000002.parquet").untaken
    write_batch(much_later._folder / "batch-00000006.parquet", before)
    with late.engine(7):
        much_later.admit(7, 7)
        groups_of_seven, _, metrics = much_later.take(7)
    assert {group.policy_version for group in groups_of_seven} == {7}
    assert metrics["resampled_groups"] > 0


def test_what_sampling_raises_is_raised_where_the_batch_is_waited_for(new_stream: Callable[..., Stream]) -> None:
    def fail(count: int) -> int:
        raise RuntimeError("the server is gone")

    stream = new_stream(Engines(fail), config(1))
    stream.admit(0, 0)
    with pytest.raises(RuntimeError, match="the server is gone"):
        stream.take(0)
