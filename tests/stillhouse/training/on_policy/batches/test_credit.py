import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.credit import teacher_shares, weights
from stillhouse.training.on_policy.step import Objective
from tests.stillhouse.training.on_policy.tables import One, table_of
from tests.stillhouse.training.sections import on_policy_of

Losses = list[list[float]]
MAX_TOKENS = 11
MODES: dict[str, Callable[[Losses], float]] = {
    "token_mean": lambda rows: sum(map(sum, rows)) / sum(map(len, rows)),
    "sequence_mean_token_mean": lambda rows: sum(sum(row) / len(row) for row in rows) / len(rows),
    "sequence_mean_token_sum": lambda rows: sum(map(sum, rows)) / len(rows),
    "constant": lambda rows: sum(map(sum, rows)) / (len(rows) * MAX_TOKENS),
    "token_sum": lambda rows: sum(map(sum, rows)),
}


@pytest.mark.parametrize("mode", MODES)
def test_weights_make_the_trainers_sum_each_way_of_aggregating_however_the_batch_is_split(mode: str):
    draw = random.Random(3)
    counts = [3, 0, 1, 7, 2]
    losses = [[draw.uniform(-1, 1) for _ in range(count)] for count in counts]
    table = table_of([One([0] * (1 + count), [0] + [1] * count, str(number)) for number, count in enumerate(counts)])
    made = weights(table, OnPolicyConfig(aggregation=mode, max_tokens=MAX_TOKENS))  # type: ignore[arg-type]
    assert made[1] == 1.0
    sums = [weight * sum(row) for weight, row in zip(made, losses, strict=True)]
    expected = MODES[mode]([row for row in losses if row])
    for split in range(len(sums)):
        # What the trainer does with two microbatches.
        total = sum(sums[:split]) / sum(counts) + sum(sums[split:]) / sum(counts)
        assert total == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
def test_each_substep_has_the_weights_of_its_own_trajectories_alone(mode: str):
    settings = OnPolicyConfig(aggregation=mode, max_tokens=MAX_TOKENS)  # type: ignore[arg-type]
    ones = [One([0] * (1 + count), [0] + [1] * count, part=number // 2) for number, count in enumerate((3, 0, 1, 7))]
    ones.append(One([0], [0], part=2))
    parts = ([replace(one, part=0) for one in ones if one.part == part] for part in range(3))
    alone = [weights(table_of(part), settings) for part in parts]
    assert weights(table_of(ones, num_parts=3), settings).tolist() == np.concatenate(alone).tolist()


TEACHERS = [{"name": name, "model": "embedded:teacher", "routes": [name]} for name in ("long", "short", "rare")]
NAMES = ["long", "long", "short", "long", "rare", "short", None, "rare"]
COUNTS = [9, 7, 2, 8, 1, 0, 4, 3]
SCALES = {"long": 0.1, "short": 1.0, "rare": 3.0, None: 0.0}


def config(**settings: object) -> OnPolicyConfig:
    return on_policy_of({"teachers": TEACHERS, "unrouted": "no_kl", "max_tokens": 11, **settings})


def ones() -> list[One]:
    """Trajectories of three teachers and of none, one of them without a sampled token; prompts of one token."""
    draw = random.Random(5)
    made = []
    for index, (name, count) in enumerate(zip(NAMES, COUNTS, strict=True)):
        sampling = [draw.uniform(-2.0, -0.1) for _ in range(count)]
        scored = [0.0, *(logprob - draw.gauss(0.5, 1.0) * SCALES[name] for logprob in sampling)]
        of_teacher = {} if name is None else {"teacher": name, "scored": scored}
        one = One([0] * (1 + count), [0] + [1] * count, f"prompt {index}", [0.0, *sampling], kl_coef=1.0, **of_teacher)  # type: ignore[arg-type]
        made.append(one)
    return made


AGGREGATIONS = ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "token_sum"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_shares_are_equal_and_leave_the_sum_of_weights(aggregation: str):
    table = table_of(ones())
    before = weights(table, config(aggregation=aggregation))
    after = weights(table, config(aggregation=aggregation, balance="teachers"))
    assert (after * table.counts).sum() == pytest.approx((before * table.counts).sum(), rel=1e-12)
    shares = teacher_shares(table, after, range(len(table)))
    assert shares == pytest.approx({name: 1 / 3 for name in SCALES if name}, rel=1e-12)
    assert after[NAMES.index(None)] == before[NAMES.index(None)]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean"])
def test_with_equal_shares_loss_and_gradient_are_the_mean_over_teachers_of_what_each_has_alone(aggregation: str):
    scored = [one for one in ones() if one.teacher is not None]
    counts = [sum(one.loss_mask) for one in scored]
    student = torch.randn(sum(counts), dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    logprobs = {one.prompt_id: part for one, part in zip(scored, student.split(counts), strict=True)}

    def loss(batch: Sequence[One], settings: OnPolicyConfig) -> torch.Tensor:
        """What the trainer minimises, of a loss that is differentiated directly."""
        losses = [
            weight * (logprobs[one.prompt_id] - torch.tensor(one.scored).double()[1:]).square().sum()
            for one, weight in zip(batch, weights(table_of(batch), settings).tolist(), strict=True)
        ]
        return torch.stack(losses).sum() / sum(sum(one.loss_mask) for one in batch)

    plain = config(aggregation=aggregation)
    alone = [loss([one for one in scored if one.teacher == name], plain) for name in ("long", "short", "rare")]
    both = loss(scored, config(aggregation=aggregation, balance="teachers")), torch.stack(alone).mean()
    torch.testing.assert_close(*both, rtol=1e-12, atol=0.0)
    gradients = [torch.autograd.grad(one, student, retain_graph=True)[0] for one in both]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


def test_the_objective_reads_the_weights_and_the_order_of_trajectories_means_nothing():
    settings = config(balance="teachers")
    table = table_of(ones())
    table.weight = weights(table, settings)
    read = Objective(algorithm_of(settings), ["long", "short", "rare"]).values(table)["weight"]
    assert np.array_equal(read, np.repeat(table.weight, table.lengths))
    assert weights(table_of(ones()[::-1]), settings)[::-1] == pytest.approx(table.weight, rel=1e-14)
