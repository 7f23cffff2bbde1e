"""Training on what a server tells of its distribution, against the whole one of a local teacher."""

from collections.abc import Callable

import pytest
import torch

from stillhouse.training.on_policy.method import OnPolicy
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
