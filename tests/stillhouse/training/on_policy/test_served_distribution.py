"""Training on what a server tells of its distribution, against the whole one of a local teacher."""

from collections.abc import Callable
from itertools import compress

import numpy as np
import pytest
import torch

from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.teachers.shared_ids import NO_ID
from tests.stillhouse.training.on_policy.test_own_template import log_distributions, merged
from tests.stillhouse.training.trainings import final_of

NewMethod = Callable[..., OnPolicy]

_SHORT = {"max_tokens": 12, "max_turns": 2, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def teacher_url(serve: Callable[[str, str], str]) -> str:
    return serve("embedded:teacher", "big")


KINDS = ("reverse_kl", "forward_kl", "jsd", "skewed_reverse_kl", "skewed_forward_kl")


def _after_a_step(method: OnPolicy) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics of the only step, and what it changed in the weights."""
    weights = [parameter for _, parameter in method.student.trained_parameters()]
    before = torch.cat([weight.detach().flatten() for weight in weights])
    final = final_of(method)
    return final, torch.cat([weight.detach().flatten() for weight in weights]) - before


@pytest.mark.parametrize("kind", [*KINDS[:3], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[3:])])
def test_a_served_teachers_best_tokens_teach_what_its_whole_distribution_does(
    new_method: NewMethod, teacher_url: str, kind: str
):
    settings = {"num_steps": 1, "learning_rate": 1e-3, "divergence": [{"kind": kind}]}
    far = {"name": "far", "kind": "vllm", "model": "big", "base_url": teacher_url}
    whole, direction = _after_a_step(new_method(**settings))
    divergences, cosines = [], []
    for top_k in (1, 4, 20):
        final, change = _after_a_step(new_method(teachers=[{**far, "top_k": top_k}], **settings))
        divergences.append(final["on_policy/divergence"])
        cosines.append(float(torch.cosine_similarity(direction, change, dim=0)))
        assert final["on_policy/teacher_kl"] == pytest.approx(whole["on_policy/teacher_kl"], abs=1e-3)
    assert divergences[0] < divergences[1] <= divergences[2] * 1.001
    # Most of a reverse KL can be where the student has mass and the teacher has not.
    assert divergences[2] == pytest.approx(whole["on_policy/divergence"], rel=0.02 if kind == "reverse_kl" else 2e-4)
    assert cosines[2] > (0.9 if kind == "reverse_kl" else 0.9998)


@pytest.fixture(scope="module")
def given_ids_url(serve: Callable[..., str]) -> str:
    return serve("embedded:teacher", "big", scales_out=True)


def _gradient(method: OnPolicy) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics of the only step, and its gradient."""
    weights = [parameter for _, parameter in method.student.trained_parameters()]
    parts: dict[int, torch.Tensor] = {}
    hooks = [
        weight.register_hook(lambda part, place=place: parts.update({place: parts.get(place, 0.0) + part}))
        for place, weight in enumerate(weights)
    ]
    final = final_of(method)
    for hook in hooks:
        hook.remove()
    return final, torch.cat([parts[place].double().flatten() for place in range(len(weights))])


@pytest.mark.parametrize("length", [12, 64])
def test_a_reverse_kl_of_the_students_and_the_teachers_best_tokens_has_the_gradient_of_the_whole_one(
    new_method: NewMethod, teacher_url: str, given_ids_url: str, length: int
):
    settings = {"num_steps": 1, "max_tokens": length, "divergence": [{"kind": "reverse_kl"}]}
    whole, direction = _gradient(new_method(**settings))
    found = {}
    for url in (teacher_url, given_ids_url):
        far = {"name": "far", "kind": "vllm", "model": "big", "base_url": url, "top_k": 20}
        final, gradient = _gradient(new_method(teachers=[far], **settings))
        assert final["on_policy/teacher_kl"] == pytest.approx(whole["on_policy/teacher_kl"], abs=1e-3)
        assert 0.0 <= final["on_policy/divergence"] <= whole["on_policy/divergence"] * 1.0001
        found[url] = float(torch.cosine_similarity(direction, gradient, dim=0))
    assert found[given_ids_url] > 0.999 > 0.99 > found[teacher_url]


def test_scores_of_given_tokens_are_those_of_a_local_teacher_restricted_to_them(
    new_method: NewMethod, given_ids_url: str
):
    far = {"name": "far", "kind": "vllm", "model": "big", "base_url": given_ids_url, "top_k": 5}
    method = new_method(teachers=[far], num_steps=1, divergence=[{"kind": "reverse_kl"}])
    samples, table = method.batch(0).samples, method.table(0)
    rows = [(list(map(int, one.token_ids)), list(map(bool, one.loss_mask))) for one in samples]
    p, q = (log_distributions(ref, rows) for ref in ("embedded:student", "embedded:teacher"))
    targets = torch.tensor([token for ids, mask in rows for token in compress(ids, mask)])[:, None]
    ids = p.topk(5).indices
    ids[~(ids == targets).any(1), -1] = targets[~(ids == targets).any(1), 0]
    tops = [top for top in table.teacher_top if top is not None]
    seen = np.concatenate([top.ids_NK for top in tops])
    assert [set(row) for row in seen[:, :5].tolist()] == [set(row) for row in ids.tolist()]
    logprobs = torch.cat([torch.from_numpy(np.sort(top.logprobs_NK[:, :5])) for top in tops])
    torch.testing.assert_close(logprobs.double(), q.gather(1, ids).sort(dim=1).values, rtol=0, atol=1e-4)
    best = q.topk(5).indices
    both = [set(row) | set(other) for row, other in zip(ids.tolist(), best.tolist(), strict=True)]
    assert [set(row) - {NO_ID} for row in seen.tolist()] == both
    is_given = torch.zeros_like(p, dtype=torch.bool).scatter(1, ids, True).scatter(1, best, True)
    p, q = (merged(log, is_given) for log in (p, q))
    expected = (p.exp() * (p - q)).sum(1).mean().item()
    assert final_of(method)["on_policy/divergence"] == pytest.approx(expected, abs=1e-4)


def test_the_students_tokens_are_recorded_for_a_teacher_that_scores_them_alone(
    new_method: NewMethod, teacher_url: str, given_ids_url: str
):
    for url, kind, num_best in ((given_ids_url, "reverse_kl", 7), (teacher_url, "reverse_kl", 0)):
        far = {"name": "far", "kind": "vllm", "model": "big", "base_url": url, "top_k": 7}
        method = new_method(teachers=[far], num_steps=1, divergence=[{"kind": kind}])
        assert method.teachers.num_best == num_best


@pytest.mark.slow
def test_a_student_that_a_server_samples_ahead_has_its_tokens_scored_too(
    new_method: NewMethod, serve: Callable[..., str], given_ids_url: str
):
    far = {"name": "far", "kind": "vllm", "model": "big", "base_url": given_ids_url, "top_k": 20}
    settings = {"num_steps": 3, "max_staleness": 1, "max_tokens": 12, "divergence": [{"kind": "reverse_kl"}]}
    method = new_method(teachers=[far], engine_url=serve("embedded:student", "base"), **settings)
    whole = new_method(engine_url=serve("embedded:student", "base"), **settings)
    # The second batch was sampled before the first update, so that its ids are of older weights.
    final, expected = final_of(method), final_of(whole)
    assert final["on_policy/divergence"] == pytest.approx(expected["on_policy/divergence"], rel=0.1)
    assert final["on_policy/divergence"] <= expected["on_policy/divergence"] * 1.001
