"""Scaled and capped logits of students against autograd through the models' own forward passes."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from stillhouse.config import Divergence
from stillhouse.serving.score import LogitScaling
from stillhouse.training.head.fused import fused_loss
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores

N, V = 30, 50
TEMPERATURE = 0.7
SMALL: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
CAPPED, FACTOR, DIVISOR = (
    Gemma2Config(**SMALL, final_logit_softcapping=0.4, initializer_range=0.3),
    CohereConfig(**SMALL, logit_scale=3.0, initializer_range=0.3),
    GraniteConfig(**SMALL, logits_scaling=0.3, initializer_range=0.3),
)


def built(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()


def token_ids() -> Tensor:
    return torch.randint(V, (1, N + 1), generator=torch.Generator().manual_seed(3))


def every_score(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    """A loss of everything that may be differentiated, with metrics of the rest."""
    assert scores.entropy_N is not None
    losses_N = -scores.logprobs_N + 0.1 * scores.logprobs_N.square()
    means = {"logprob": scores.logprobs_N, "normaliser": scores.log_normalisers_N, "entropy": scores.entropy_N}
    if scores.divergence_N is not None:
        losses_N = losses_N + scores.divergence_N.square()
    return TokenLosses(losses_N, means=means)


def own_losses(student: PreTrainedModel, teacher: PreTrainedModel | None) -> TokenLosses:
    """The same of the models' own logits."""
    ids = token_ids()
    logits = student(input_ids=ids[:, :-1], use_cache=False).logits[0] / TEMPERATURE
    logprobs = logits.log_softmax(-1)
    scores = TokenScores(
        targets_N=ids[0, 1:],
        logprobs_N=logprobs.gather(1, ids[0, 1:, None])[:, 0],
        log_normalisers_N=logits.logsumexp(-1),
        is_top_N=logprobs.argmax(-1) == ids[0, 1:],
        entropy_N=-(logprobs.exp() * logprobs).sum(-1).detach(),
    )
    if teacher is not None:
        with torch.no_grad():
            log_q = (teacher(input_ids=ids[:, :-1], use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1)
        reverse = (logprobs.exp() * (logprobs - log_q)).sum(-1)
        forward = (log_q.exp() * (log_q - logprobs)).sum(-1)
        scores = TokenScores(
            **{name: getattr(scores, name) for name in scores.__slots__}
            | {"divergence_N": 0.5 * reverse + 2.0 * forward}
        )
    return every_score(scores, {})


def fused(student: PreTrainedModel, teacher: PreTrainedModel | None, *, compiled: bool = False) -> Any:
    ids, reference, terms = token_ids(), None, ()
    if teacher is not None:
        with torch.no_grad():
            hidden = teacher.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0]
        reference = Reference(hidden, teacher.get_output_embeddings(), V, LogitScaling.of(teacher))
        terms = (Divergence(kind="reverse_kl", weight=0.5), Divergence(kind="forward_kl", weight=2.0))
    return fused_loss(
        student.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0],
        student.get_output_embeddings(),
        ids[0, 1:],
        {},
        every_score,
        scale=1.0,
        temperature=TEMPERATURE,
        wants_entropy=True,
        divergence=terms,
        reference=reference,
        scaling=LogitScaling.of(student),
        chunk_elements=7 * V,
        compiled=compiled,
    )


def assert_same(student: PreTrainedModel, teacher: PreTrainedModel | None = None, *, compiled: bool = False) -> None:
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    seen, expected = fused(student, teacher, compiled=compiled), own_losses(student, teacher)
    torch.testing.assert_close(seen.loss, expected.losses_N.sum(), rtol=1e-6, atol=1e-6)
    for name, values_N in expected.means.items():
        torch.testing.assert_close(seen.sums[name], values_N.detach().sum(), rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad(seen.loss, trained, allow_unused=True)
    own = torch.autograd.grad(expected.losses_N.sum(), trained, allow_unused=True)
    for one, other in zip(ours, own, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one - other).norm() <= 1e-5 * other.norm() + 1e-9


@pytest.mark.parametrize("teacher", [CAPPED, FACTOR, DIVISOR], ids=["cap", "factor", "divisor"])
@pytest.mark.parametrize("student", [CAPPED, FACTOR, DIVISOR], ids=["cap", "factor", "divisor"])
def test_student_and_teacher_are_compared_each_with_its_own_scaling(
    student: PreTrainedConfig, teacher: PreTrainedConfig
):
    assert_same(built(student), built(teacher, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("student", [CAPPED, DIVISOR], ids=["cap", "divisor"])
def test_compiled_kernels_cap_and_scale_alike(student: PreTrainedConfig):
    assert_same(built(student), built(FACTOR, seed=1), compiled=True)


def test_bfloat16_logits_are_rounded_once_before_the_cap():
    model = built(Gemma2Config(**SMALL, final_logit_softcapping=2.0, initializer_range=0.3))
    hidden = model.base_model(input_ids=token_ids()[:, :-1], use_cache=False).last_hidden_state[0].bfloat16().detach()
    head = model.get_output_embeddings().bfloat16()
    targets = token_ids()[0, 1:]
    loss = fused_loss(
        hidden, head, targets, {}, lambda scores, _: TokenLosses(-scores.logprobs_N), scale=1.0,
        scaling=LogitScaling(1.0, 2.0),
    ).loss  # fmt: skip
    logits = 2.0 * (head(hidden).float() / 2.0).tanh()
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
