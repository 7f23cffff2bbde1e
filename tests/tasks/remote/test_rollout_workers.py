"""Context of a shard that runs elsewhere."""

from collections.abc import Callable

import pytest

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached, ConfigError
from tasks.remote.ray_cluster import ray_workers
from tasks.remote.rollout_workers import share_of
from tasks.run.context import RunContext

MakeContext = Callable[..., RunContext]


def test_the_limits_are_divided_by_the_shards_under_way(make_context: MakeContext) -> None:
    context = make_context(
        rollout_shards=4, concurrency=20, max_concurrency=3, max_requests_per_minute=60.0, max_tokens_per_minute=None
    )
    runtime = share_of(context, 0.1, "rollouts/v1-a").runtime
    assert (runtime.concurrency, runtime.max_concurrency) == (5, 1)
    assert (runtime.max_requests_per_minute, runtime.max_tokens_per_minute) == (15.0, None)


def test_parts_of_the_budget_add_up_to_no_more_than_it(make_context: MakeContext) -> None:
    context = make_context(budget=BudgetConfig(max_usd=3.0, max_tokens=1000, max_requests=100, max_hours=2.0))
    parts = [share_of(context, share, "key", seconds=3600.0).budget for share in (1 / 3, 1 / 3, 1 / 3)]
    assert sum(part.max_usd or 0 for part in parts) == pytest.approx(3.0)
    assert sum(part.max_tokens or 0 for part in parts) == 999
    assert sum(part.max_requests or 0 for part in parts) == 99
    assert all(part.max_hours == 1.0 for part in parts)


def test_a_run_without_budget_has_parts_without(make_context: MakeContext) -> None:
    assert share_of(make_context(), 0.0, "key").budget == BudgetConfig()


@pytest.mark.parametrize(
    ("budget", "seconds"), [(BudgetConfig(max_requests=5), 0.0), (BudgetConfig(max_hours=1.0), 3600.0)]
)
def test_an_empty_part_is_refused_by_its_cap(make_context: MakeContext, budget: BudgetConfig, seconds: float) -> None:
    with pytest.raises(BudgetReached, match=r"^budget\.max_\w+ ="):
        share_of(make_context(budget=budget), 0.1, "key", seconds=seconds)


def test_a_worker_that_runs_two_shards_takes_them_for_two_runs(make_context: MakeContext) -> None:
    context = make_context()
    names = {share_of(context, 0.5, key).run_id for key in ("a", "b")}
    assert len(names) == 2
    assert share_of(context, 0.5, "a").run_id in names


def test_shards_of_other_machines_have_their_own_journals_and_those_here_share_one(make_context: MakeContext) -> None:
    here, there = make_context(task_runner="ray"), make_context(task_runner="ray", ray_address="10.0.0.5:6379")
    assert share_of(here, 0.5, "a").journal == here.store.root
    journals = {share_of(there, 0.5, key).journal for key in ("a", "b")}
    assert len(journals) == 2
    assert all(path.parent == there.store.root / "journals" for path in journals)


def test_ray_workers_of_other_machines_need_a_folder_they_share(make_context: MakeContext) -> None:
    runtime = make_context(task_runner="ray", ray_address="10.0.0.5:6379", store="s3://bucket/team").runtime
    with pytest.raises(ConfigError, match=r"'s3://bucket/team'.*runtime\.rollout_deployment"):
        ray_workers(runtime, num_workers=1).__enter__()
