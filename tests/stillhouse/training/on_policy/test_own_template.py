"""Training a student that is asked by `User: ... Assistant:` with a chat teacher that reads by its own template."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from stillhouse.chat.refs import resolve_model
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.types import Sample
from tests.stillhouse.training.trainings import final_of

NewMethod = Callable[..., OnPolicy]

TEACHER = {"name": "near", "model": "embedded:teacher", "template": "own"}
END_OF_TEXT, END_OF_TURN = 0, 2


def log_distributions(ref: str, rows: list[tuple[list[int], list[bool]]]) -> Tensor:
    """Log-probabilities in float64 of all tokens at the sampled ones."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model(ref), dtype=torch.float64).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0, :-1][torch.tensor(mask[1:])] for ids, mask in rows]
    return torch.cat(logits).log_softmax(-1)


def explicit(student_ref: str, samples: Sequence[Sample], top_k: int | None) -> dict[str, float]:
    """The metrics by the definitions with the ends of turns exchanged, of all tokens or of the teacher's best ones."""
    p = log_distributions(student_ref, [(one.token_ids, one.loss_mask) for one in samples])
    q = log_distributions("embedded:teacher", [(one.read.token_ids, one.read.loss_mask) for one in samples])
    q = q.index_copy(1, torch.tensor([END_OF_TEXT, END_OF_TURN]), q[:, [END_OF_TURN, END_OF_TEXT]])
    targets = torch.tensor([token for one in samples for token in compress(one.token_ids, one.loss_mask)])[:, None]
    teacher_kl = (p - q).gather(1, targets).mean().item()
    if top_k is not None:
        is_alone = (
            torch.zeros_like(q, dtype=torch.bool).scatter(1, q.topk(top_k).indices, True).scatter(1, targets, True)
        )
        p, q = (merged(log, is_alone) for log in (p, q))
    reverse, forward = ((one.exp() * (one - other)).sum(1).mean().item() for one, other in ((p, q), (q, p)))
    return {"teacher_kl": teacher_kl, "reverse_kl": reverse, "forward_kl": forward}


def merged(log_p: Tensor, is_alone: Tensor) -> Tensor:
    """Log-probabilities with all tokens that are not alone as one more; others count as impossible for both."""
    rest = log_p.masked_fill(is_alone, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([log_p.masked_fill(~is_alone, -1e3), rest], dim=1)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"divergence": [{"kind": "reverse_kl"}]},
    {"divergence": [{"kind": "forward_kl"}]},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["sampled", "reverse", "forward"])
@pytest.mark.parametrize("top_k", [None, 20], ids=["local", "served"])
def test_a_step_is_taken_against_the_teachers_distribution_with_the_ends_of_turns_exchanged(
    new_method: NewMethod,
    serve: Callable[[str, str], str],
    colon_student: str,
    settings: dict[str, Any],
    top_k: int | None,
) -> None:
    teacher: dict[str, Any] = dict(TEACHER)
    if top_k is not None:
        teacher |= {"kind": "vllm", "base_url": serve("embedded:teacher", "embedded:teacher")}
        teacher["top_k"] = top_k if settings else None
    method = new_method(student_ref=colon_student, teachers=[teacher], num_steps=1, max_tokens=40, **settings)
    samples = method.batch(0).samples
    final = final_of(method)
    known = explicit(colon_student, samples, top_k)
    assert final["on_policy/teacher_kl"] == pytest.approx(known["teacher_kl"], abs=1e-4)
    for term in settings.get("divergence", ()):
        # A server's log-probabilities are kept in half precision.
        tolerance = 1e-5 if top_k is None else 1e-2
        assert final["on_policy/divergence"] == pytest.approx(known[term["kind"]], rel=tolerance)
