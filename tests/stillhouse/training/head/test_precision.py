from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stillhouse.config import StudentConfig
from stillhouse.serving.score import score_tokens
from stillhouse.training.head.fused import fused_loss
from stillhouse.training.head.precision import Float32Linear
from stillhouse.training.head.scores import TokenLosses, TokenScores
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student

CPU = torch.device("cpu")
IDS = list(range(3, 60))


def student(model: str, parameters: str, **settings: object) -> Student:
    config = StudentConfig.model_validate({"parameters": parameters, "lora_rank": 4, **settings})
    return load_student(model, config, CPU, seed=0)


def head_error(of: Student) -> tuple[float, float]:
    """How far scores and training put log-probabilities from those of float32 logits of the same hidden states."""
    head, seen = of.head, []

    def loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        seen.append(scores.logprobs_N)
        return TokenLosses(scores.logprobs_N)

    targets = torch.tensor(IDS[1:])
    with of.precision():
        hidden = of.step.backbone(input_ids=torch.tensor([IDS[:-1]]), use_cache=False).last_hidden_state[0].detach()
        seen.append(torch.tensor(score_tokens(of.causal_lm, [IDS])[0][1:]))
        fused_loss(hidden, head, targets, {}, loss, scale=1.0)
    exact = -cross_entropy(hidden.double() @ head.weight.detach().double().t(), targets, reduction="none")
    scored, trained = ((logprobs.detach().double() - exact).abs().max().item() for logprobs in seen)
    return scored, trained


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_float32_logits_are_nearer_to_exact_ones_in_training_and_in_scores(tiny_model: str, parameters: str):
    rounded = head_error(student(tiny_model, parameters))
    exact = head_error(student(tiny_model, parameters, cast_lm_head_to_fp32=True))
    assert min(rounded) > 1e-4
    assert max(exact) < 1e-5


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_gradients_pass_through_float32_logits_to_parameters_of_their_own_type(tiny_model: str, parameters: str):
    trained = student(tiny_model, parameters, cast_lm_head_to_fp32=True)
    head = trained.head
    assert isinstance(head, Float32Linear)
    assert head.weight is trained.causal_lm.get_input_embeddings().weight
    assert head.weight.dtype is (torch.float32 if parameters == "full" else torch.bfloat16)
    hidden = torch.randn(5, head.in_features, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.arange(5)
    with trained.precision():
        loss = fused_loss(
            hidden, head, targets, {}, lambda scores, _: TokenLosses(-scores.logprobs_N), scale=1.0
        ).loss  # fmt: skip
    (seen,) = torch.autograd.grad(loss, hidden)
    exact = cross_entropy(head(hidden), targets, reduction="sum")
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(seen, torch.autograd.grad(exact, hidden)[0], rtol=2**-7, atol=1e-4)
