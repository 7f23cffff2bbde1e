"""The objective against a tabular autoregressive model whose 27 sequences are enumerated, in float64.

The model has V = 3 tokens and T = 3 positions; each prefix (1 + 3 + 9 of them) is a state with logits of its own. What
is compared are gradients of exact expectations: every sequence counts with the probability with which it is sampled.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.fused import fused_loss
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.batches.credit import advantages
from stillhouse.training.on_policy.step import Objective
from tests.stillhouse.training.on_policy.tables import One, table_of
from tests.stillhouse.training.sections import on_policy_of

V, T = 3, 3
STATES = {prefix: i for i, prefix in enumerate(p for t in range(T) for p in itertools.product(range(V), repeat=t))}
SEQUENCES = list(itertools.product(range(V), repeat=T))
VISITED = torch.tensor([[STATES[s[:t]] for t in range(T)] for s in SEQUENCES])
CHOSEN = torch.tensor(SEQUENCES)


def table(seed: int) -> Tensor:
    return torch.randn(len(STATES), V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


STUDENT, TEACHER, SAMPLER, OTHER = map(table, range(1, 5))


def token_logprobs(logits: Tensor) -> Tensor:
    """Log-probability of each token of each sequence, [27, 3]."""
    return logits.log_softmax(-1)[VISITED, CHOSEN]


def visits(logits: Tensor) -> Tensor:
    """Probability of reaching each state."""
    logprobs = logits.log_softmax(-1)
    return torch.stack(
        [sum((logprobs[STATES[p[:t]], p[t]] for t in range(len(p))), torch.zeros(())).exp() for p in STATES]
    )


def state_kls(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = student.log_softmax(-1), teacher.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def kl_gradient(student: Tensor, teacher: Tensor, visits: Tensor) -> Tensor:
    """Gradient of the sum over states of visits * KL(student || teacher), visits held fixed."""
    student = student.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((visits * state_kls(student, teacher)).sum(), student)
    return gradient


def config(**settings: Any) -> OnPolicyConfig:
    return on_policy_of({"group_size": 27, **settings})


def samples(sampler: Tensor = STUDENT, teacher: Tensor | None = TEACHER, **fields: Any) -> list[One]:
    """One trajectory for each sequence, after a prompt of one token."""

    def aligned(logprobs: Tensor) -> list[list[float]]:
        return [[0.0, *row] for row in token_logprobs(logprobs).tolist()]

    scored = [None] * len(SEQUENCES) if teacher is None else aligned(teacher)
    shared = {"teacher": None if teacher is None else "t", "kl_coef": 1.0, **fields}
    return [
        One([0, *tokens], [0, 1, 1, 1], sampling=drawn, scored=known, **shared)
        for tokens, drawn, known in zip(SEQUENCES, aligned(sampler), scored, strict=True)
    ]


def rewards(seed: int = 9) -> list[float]:
    return torch.rand(len(SEQUENCES), generator=torch.Generator().manual_seed(seed)).tolist()


def credited(samples: Sequence[One], rewards: Sequence[float | None], settings: OnPolicyConfig) -> list[One]:
    made = advantages(table_of(samples), rewards, algorithm_of(settings))
    if made is None:
        return list(samples)
    return [replace(one, advantages=row) for one, row in zip(samples, made.reshape(-1, 1 + T).tolist(), strict=True)]


def objective_of(settings: OnPolicyConfig, teachers: Sequence[str] = (), routes: Sequence[str] = ()) -> Objective:
    return Objective(algorithm_of(settings), teachers, routes)


def values_of(objective: Objective, samples: Sequence[One]) -> dict[str, Tensor]:
    table = table_of(samples)
    columns = objective.values(table)
    return {name: torch.from_numpy(column[table.loss_mask]).double() for name, column in columns.items()}


def scores_of(student: Tensor, objective: Objective, teacher: Tensor = TEACHER) -> TokenScores:
    """What the head says of every token of every sequence."""
    logprobs, kls = token_logprobs(student).flatten(), state_kls(student, teacher)[VISITED].flatten()
    return TokenScores(
        targets_N=CHOSEN.flatten(),
        logprobs_N=logprobs,
        log_normalisers_N=torch.zeros_like(logprobs),
        is_top_N=torch.ones_like(logprobs, dtype=torch.bool),
        entropy_N=torch.zeros_like(logprobs),
        divergence_N=kls if objective.divergence else None,
        reference_logprobs_N=token_logprobs(teacher).flatten() if objective.is_exact else None,
    )


def losses_of(settings: OnPolicyConfig, batch: Sequence[One], student: Tensor = STUDENT, **names: Any) -> TokenLosses:
    objective = objective_of(settings, **({"teachers": ["t"]} | names))
    return objective.loss(scores_of(student, objective), values_of(objective, batch))


def expected_gradient(
    settings: OnPolicyConfig, batch: Sequence[One], sampler: Tensor = STUDENT, **names: Any
) -> Tensor:
    """Gradient of the expectation under the sampler of the sum of a sequence's losses."""
    student = STUDENT.clone().requires_grad_()
    losses_N = losses_of(settings, batch, student, **names).losses_N
    weights_S = token_logprobs(sampler).sum(-1).exp()
    (gradient,) = torch.autograd.grad((weights_S[:, None] * losses_N.view(-1, T)).sum(), student)
    return gradient


def assert_same(seen: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-10)


def assert_same_bits(seen: TokenLosses, expected: TokenLosses) -> None:
    assert torch.equal(seen.losses_N, expected.losses_N)
    for name in seen.means.keys() & expected.means.keys():
        assert torch.equal(seen.means[name], expected.means[name])


ON_POLICY_GRADIENT = kl_gradient(STUDENT, TEACHER, visits(STUDENT))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss_fn": "reinforce"},
        {"loss_fn": "ppo"},
        {"correction": "truncate"},
        {"divergence": [{"kind": "reverse_kl"}]},
    ],
)
def test_every_pure_mode_has_the_gradient_of_the_kl_at_the_states_visited(settings: Mapping[str, Any]):
    assert_same(expected_gradient(config(**settings), samples()), ON_POLICY_GRADIENT)


@pytest.mark.parametrize("settings", [{}, {"divergence": [{"kind": "reverse_kl"}]}])
def test_the_output_layer_gives_the_objective_the_scores_it_needs(settings: Mapping[str, Any]):
    """The table as the weight of an output layer, each state a hidden unit of its own."""

    def layer(table: Tensor) -> nn.Linear:
        linear = nn.Linear(len(STATES), V, bias=False)
        linear.weight = nn.Parameter(table.T.clone())
        return linear

    objective, head = objective_of(config(aggregation="token_sum", **settings), ["t"]), layer(STUDENT)
    hidden_NH = torch.eye(len(STATES), dtype=torch.float64)[VISITED.flatten()]
    reference = Reference(hidden_NH, layer(TEACHER), V) if objective.is_exact else None
    probabilities = token_logprobs(STUDENT).sum(-1).exp().tolist()
    batch = [replace(sample, weight=weight) for sample, weight in zip(samples(), probabilities, strict=True)]
    sums = fused_loss(
        hidden_NH, head, CHOSEN.flatten(), values_of(objective, batch), objective.loss, scale=1.0,
        wants_entropy=True, divergence=objective.divergence, reference=reference, chunk_elements=20,
    )  # fmt: skip
    sums.loss.backward()
    assert head.weight.grad is not None
    assert_same(head.weight.grad.T, ON_POLICY_GRADIENT)


def test_samples_of_another_policy_are_unbiased():
    reached = visits(SAMPLER)
    batch = samples(SAMPLER)
    assert_same(expected_gradient(config(), batch, SAMPLER), kl_gradient(STUDENT, TEACHER, reached))


def test_rewards_and_kl_are_taken_together_and_either_of_them_alone_is_the_plain_method_bit_for_bit():
    given = rewards()
    mixed = config(reward_coef=0.5)
    both = losses_of(mixed, credited(samples(kl_coef=0.3), given, mixed))
    only_rewards = config(reward_coef=0.5, kl_coef=0.0)
    without_kl = losses_of(only_rewards, credited(samples(kl_coef=0.0), given, only_rewards))
    plain = losses_of(only_rewards, credited(samples(teacher=None), given, only_rewards), teachers=[])
    assert_same_bits(without_kl, plain)
    assert "teacher_kl" in without_kl.ratios
    assert not plain.ratios
    pure = config(reward_coef=0.0)
    without_rewards = losses_of(pure, credited(samples(kl_coef=0.3), given, pure))
    assert_same_bits(without_rewards, losses_of(pure, samples(kl_coef=0.3)))
    assert_same(both.losses_N, without_kl.losses_N + without_rewards.losses_N)
    assert without_kl.losses_N.abs().max() > 0.1


def test_an_exact_divergence_is_added_to_the_policy_gradient_of_the_rewards():
    settings = config(reward_coef=1.0, divergence=[{}], loss_fn="ppo")
    losses = losses_of(settings, credited(samples(kl_coef=0.5), rewards(), settings))
    only = config(reward_coef=1.0, kl_coef=0.0, loss_fn="ppo")
    plain = losses_of(only, credited(samples(teacher=None), rewards(), only), teachers=[])
    kls = state_kls(STUDENT, TEACHER)[VISITED].flatten()
    assert_same(losses.losses_N, plain.losses_N + 0.5 * kls)
    assert_same(losses.means["advantage"], plain.means["advantage"])
    assert_same(losses.ratios["divergence"][0], kls)


def test_teachers_score_their_own_prompts_with_their_own_factor_and_nobody_else():
    settings = config()
    by_t, by_u = samples(kl_coef=0.5), samples(teacher=OTHER, kl_coef=2.0)
    alone = [losses_of(settings, batch).losses_N.view(-1, T) for batch in (by_t, by_u)]
    routed = [replace(sample, route="math") for sample in by_t[:10]]
    routed += [replace(sample, teacher="u", route="code") for sample in by_u[10:20]]
    routed += [replace(sample, teacher=None, scored=None) for sample in by_t[20:]]
    together = losses_of(settings, routed, teachers=["t", "u"], routes=["math", "code"])
    losses = together.losses_N.view(-1, T)
    assert torch.equal(losses[:20], torch.cat([alone[0][:10], alone[1][10:20]]))
    assert not losses[20:].any()
    p = token_logprobs(STUDENT)
    kls = {"t": (p - token_logprobs(TEACHER))[:10], "u": (p - token_logprobs(OTHER))[10:20]}
    means = {name: float(over.sum() / under.sum()) for name, (over, under) in together.ratios.items()}
    assert means["teacher_kl"] == pytest.approx(float(torch.cat([*kls.values()]).mean()))
    assert means["teacher_kl/t"] == means["teacher_kl_by_tag/math"] == pytest.approx(float(kls["t"].mean()))
    assert means["teacher_kl/u"] == means["teacher_kl_by_tag/code"] == pytest.approx(float(kls["u"].mean()))
    assert means["teacher_kl_k3"] > 0


def test_samples_that_nobody_scores_still_learn_from_rewards_where_distributions_are_compared():
    settings = config(reward_coef=1.0, divergence=[{}])
    batch = credited([replace(sample, teacher=None, kl_coef=0.0) for sample in samples()], rewards(), settings)
    losses = losses_of(settings, batch)
    only = config(reward_coef=1.0, kl_coef=0.0)
    assert_same_bits(losses, losses_of(only, credited(samples(teacher=None), rewards(), only), teachers=[]))
    assert not losses.ratios["teacher_kl"][1].any()


def test_an_id_that_the_teacher_does_not_have_is_left_out_of_its_kl():
    objective = objective_of(config(divergence=[{}]), ["t"])
    scores = scores_of(STUDENT, objective)
    scores.reference_logprobs_N[5] = -torch.inf  # type: ignore[index]
    losses = objective.loss(scores, values_of(objective, samples()))
    assert losses.losses_N.isfinite().all()
    assert losses.ratios["teacher_kl"][1].sum() == len(losses.losses_N) - 1


def test_advantages_beyond_the_clip_are_cut_and_counted():
    plain = losses_of(config(), samples()).means["advantage"]
    clipped = losses_of(config(adv_clip=0.5), samples())
    assert_same(clipped.means["advantage"], plain.clamp(-0.5, 0.5))
    assert torch.equal(clipped.means["adv_clipped_share"], (plain.abs() > 0.5).double())


def test_weights_of_trajectories_enter_the_loss_and_no_metric():
    plain = losses_of(config(), samples())
    heavy = losses_of(config(aggregation="token_sum"), samples(weight=3.0))
    assert_same(heavy.losses_N, 3.0 * plain.losses_N)
    assert torch.equal(heavy.means["advantage"], plain.means["advantage"])


@pytest.mark.parametrize("old", [None, OTHER])
def test_corrected_ratios_are_those_to_the_sampler_up_to_what_is_cut(old: Tensor | None):
    """Once against the student as it is, for one update, and once against what it was before the first of several."""
    before = STUDENT if old is None else old
    batch = [
        replace(sample, old=[0.0, *row])
        for sample, row in zip(samples(SAMPLER), token_logprobs(before).tolist(), strict=True)
    ]
    passes = {"num_passes": 1 if old is None else 2}
    wide = config(correction="truncate", correction_bounds=(0.5, 1e9), **passes)
    student = STUDENT.clone().requires_grad_()
    losses = losses_of(wide, batch, student)
    assert_same(losses.losses_N, losses_of(config(), batch).losses_N)
    assert not losses.means["corrected_share"].any()
    ratios = (token_logprobs(before) - token_logprobs(SAMPLER)).exp().flatten()
    masked = losses_of(config(correction="mask", **passes), batch)
    is_kept = (ratios >= 0.5) & (ratios <= 2.0)
    assert_same(masked.losses_N, torch.where(is_kept, losses.losses_N.detach(), 0.0))
    assert torch.equal(masked.means["corrected_share"], (~is_kept).double())


def test_old_logprobs_are_needed_only_where_updates_share_a_batch_that_another_program_sampled():
    served = {"engine_url": "http://127.0.0.1:8000/v1"}
    needed = [{"num_passes": 2, **served}, {"num_substeps": 2, "correction": "mask"}]
    others: list[dict[str, Any]] = [{"num_passes": 2}, {"correction": "mask"}, served]
    assert all(objective_of(config(**settings)).needs_old_logprobs for settings in needed)
    assert not any(objective_of(config(**settings)).needs_old_logprobs for settings in others)


def test_forms_that_bound_the_ratio_report_how_often():
    batch = samples(SAMPLER)
    ratios = (token_logprobs(STUDENT) - token_logprobs(SAMPLER)).flatten()
    losses = losses_of(config(loss_fn="ppo", ppo_clip=(0.5, 1.0)), batch)
    is_good = losses.means["advantage"] > 0.0
    is_clipped = torch.where(is_good, ratios.exp() > 2.0, ratios.exp() < 0.5)
    assert torch.equal(losses.means["ratio_clipped_share"], is_clipped.double())
    assert_same(losses.means["log_ratio_mean"], ratios)
    assert_same(losses.maxima["log_ratio_abs_max"], ratios.abs())
