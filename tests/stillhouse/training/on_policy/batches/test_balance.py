import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import choose_algorithm
from stillhouse.training.on_policy.batches.balance import teacher_shares
from stillhouse.training.on_policy.batches.credit import with_weights
from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.scored import ScoredSample

TEACHERS = [{"name": name, "model": "embedded:teacher", "routes": [name]} for name in ("long", "short", "rare")]
NAMES = ["long", "long", "short", "long", "rare", "short", None, "rare"]
COUNTS = [9, 7, 2, 8, 1, 0, 4, 3]
SCALES = {"long": 0.1, "short": 1.0, "rare": 3.0, None: 0.0}


def config(**settings: object) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate({"teachers": TEACHERS, "unrouted": "no_kl", "max_tokens": 11, **settings})


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


def kls(name: str) -> list[float]:
    return [kl for one in samples() if one.teacher == name for kl in (one.sampled_kl or [])[1:]]


AGGREGATIONS = ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "token_sum"]


@pytest.mark.parametrize("balance", ["teachers", "gaps"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_shares_are_as_asked_for_and_leave_the_sum_of_weights(aggregation: str, balance: str):
    settings = config(aggregation=aggregation, balance=balance)
    before, after = weighted(config(aggregation=aggregation)), weighted(settings)
    sums = [math.fsum(one.weight * sum(one.loss_mask) for one in batch) for batch in (before, after)]
    assert sums[1] == pytest.approx(sums[0], rel=1e-12)
    gaps = {name: 1.0 if balance == "teachers" else statistics.fmean(map(abs, kls(name))) for name in SCALES if name}
    expected = {name: gap / math.fsum(gaps.values()) for name, gap in gaps.items()}
    assert teacher_shares(after) == pytest.approx(expected, rel=1e-12)
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


def test_equal_spreads_make_the_sampled_kls_of_all_teachers_scatter_alike_within_bounds():
    after = weighted(config(balance="spreads"))
    factors = {one.teacher: one.weight for one in after if one.teacher and any(one.loss_mask)}
    whole = statistics.pstdev([kl for name in factors for kl in kls(str(name))])
    assert statistics.pstdev([factors["rare"] * kl for kl in kls("rare")]) == pytest.approx(whole, rel=1e-12)
    assert factors["long"] == 4.0
    assert after[NAMES.index(None)].weight == 1.0


@pytest.mark.parametrize("balance", ["gaps", "spreads"])
def test_teachers_that_agree_with_the_student_share_as_if_nothing_were_known(balance: str):
    same = [replace(one, teacher_logprobs=one.sampling_logprobs if one.teacher else None) for one in samples()]
    equal = config(balance="teachers" if balance == "gaps" else "none")
    assert weighted(config(balance=balance), same) == weighted(equal, same)


def test_a_gap_far_below_the_others_keeps_a_small_share():
    near = [replace(one, teacher_logprobs=one.sampling_logprobs) if one.teacher == "long" else one for one in samples()]
    shares = teacher_shares(weighted(config(balance="gaps"), near))
    assert 0.01 < shares["long"] < 0.05 / 2
    assert shares["rare"] > shares["short"]


@pytest.mark.parametrize("balance", ["teachers", "gaps", "spreads"])
def test_the_objective_multiplies_by_the_weights_and_the_order_of_samples_means_nothing(balance: str):
    settings = config(balance=balance)
    objective = Objective(choose_algorithm(settings, has_teacher=True), ["long", "short", "rare"])
    after = weighted(settings)
    for one in after:
        assert objective.token_values(one)["weight"] == [one.weight] * len(one.token_ids)
    reversed_weights = [one.weight for one in weighted(settings, samples()[::-1])][::-1]
    assert reversed_weights == pytest.approx([one.weight for one in after], rel=1e-14)
