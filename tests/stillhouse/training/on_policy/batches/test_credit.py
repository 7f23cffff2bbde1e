import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.credit import teacher_shares, with_weights
from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.scored import ScoredSample
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
    samples = [
        ScoredSample(token_ids=[0] * (1 + count), loss_mask=[False] + [True] * count, prompt_id=str(index))
        for index, count in enumerate(counts)
    ]
    made = with_weights(samples, OnPolicyConfig(aggregation=mode, max_tokens=MAX_TOKENS))  # type: ignore[arg-type]
    assert [replace(sample, weight=1.0) for sample in made] == samples
    sums = [sample.weight * sum(row) for sample, row in zip(made, losses, strict=True)]
    expected = MODES[mode]([row for row in losses if row])
    for split in range(len(sums)):
        # What the trainer does with two microbatches.
        total = sum(sums[:split]) / sum(counts) + sum(sums[split:]) / sum(counts)
        assert total == pytest.approx(expected)


TEACHERS = [{"name": name, "model": "embedded:teacher", "routes": [name]} for name in ("long", "short", "rare")]
NAMES = ["long", "long", "short", "long", "rare", "short", None, "rare"]
COUNTS = [9, 7, 2, 8, 1, 0, 4, 3]
SCALES = {"long": 0.1, "short": 1.0, "rare": 3.0, None: 0.0}


def config(**settings: object) -> OnPolicyConfig:
    return on_policy_of({"teachers": TEACHERS, "unrouted": "no_kl", "max_tokens": 11, **settings})


def samples() -> list[ScoredSample]:
    """Trajectories of three teachers and of none, one of them without a sampled token; prompts of one token."""
    draw = random.Random(5)
    made = []
    for index, (name, count) in enumerate(zip(NAMES, COUNTS, strict=True)):
        sampling = [draw.uniform(-2.0, -0.1) for _ in range(count)]
        scored = [logprob - draw.gauss(0.5, 1.0) * SCALES[name] for logprob in sampling]
        made.append(
            ScoredSample(
                [0] * (1 + count),
                [False] + [True] * count,
                f"prompt {index}",
                sampling_logprobs=[0.0, *sampling],
                teacher=name,
                kl_coef=1.0,
                teacher_logprobs=None if name is None else [0.0, *scored],
            )
        )
    return made


def weighted(settings: OnPolicyConfig, batch: Sequence[ScoredSample] | None = None) -> list[ScoredSample]:
    return with_weights(samples() if batch is None else batch, settings)


AGGREGATIONS = ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "token_sum"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_shares_are_equal_and_leave_the_sum_of_weights(aggregation: str):
    settings = config(aggregation=aggregation, balance="teachers")
    before, after = weighted(config(aggregation=aggregation)), weighted(settings)
    sums = [math.fsum(one.weight * sum(one.loss_mask) for one in batch) for batch in (before, after)]
    assert sums[1] == pytest.approx(sums[0], rel=1e-12)
    assert teacher_shares(after) == pytest.approx({name: 1 / 3 for name in SCALES if name}, rel=1e-12)
    assert [replace(one, weight=1.0) for one in after] == samples()
    assert after[NAMES.index(None)] == before[NAMES.index(None)]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean"])
def test_with_equal_shares_loss_and_gradient_are_the_mean_over_teachers_of_what_each_has_alone(aggregation: str):
    scored = [one for one in samples() if one.teacher is not None]
    counts = [sum(one.loss_mask) for one in scored]
    student = torch.randn(sum(counts), dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    logprobs = {one.prompt_id: part for one, part in zip(scored, student.split(counts), strict=True)}

    def loss(weighted: Sequence[ScoredSample]) -> torch.Tensor:
        """What the trainer minimises, of a loss that is differentiated directly."""
        losses = [
            one.weight * (logprobs[one.prompt_id] - torch.tensor(one.teacher_logprobs).double()[1:]).square().sum()
            for one in weighted
        ]
        return torch.stack(losses).sum() / sum(sum(one.loss_mask) for one in weighted)

    plain = config(aggregation=aggregation)
    alone = [
        loss(with_weights([one for one in scored if one.teacher == name], plain)) for name in ("long", "short", "rare")
    ]
    both = loss(weighted(config(aggregation=aggregation, balance="teachers"), scored)), torch.stack(alone).mean()
    torch.testing.assert_close(*both, rtol=1e-12, atol=0.0)
    gradients = [torch.autograd.grad(one, student, retain_graph=True)[0] for one in both]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


def test_the_objective_multiplies_by_the_weights_and_the_order_of_samples_means_nothing():
    settings = config(balance="teachers")
    objective = Objective(algorithm_of(settings), ["long", "short", "rare"])
    after = weighted(settings)
    for one in after:
        assert objective.token_values(one)["weight"] == [one.weight] * len(one.token_ids)
    reversed_weights = [one.weight for one in weighted(settings, samples()[::-1])][::-1]
    assert reversed_weights == pytest.approx([one.weight for one in after], rel=1e-14)
