"""The fused output layer with a teacher beside it, against naive logits and autograd, in float64."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stillhouse.config import Divergence
from stillhouse.serving.score import LogitScaling
from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores
from stillhouse.training.head.softmax import block_rows
from tests.stillhouse.training.head.gradients import assert_close, assert_same

N, H, R, V, S = 37, 8, 12, 50, 44
SCALE, TEMPERATURE = 0.3, 0.7
TERMS = (
    Divergence(kind="reverse_kl", weight=0.5),
    Divergence(kind="jsd", beta=0.3, weight=2.0),
    Divergence(kind="forward_kl", top_k=5, weight=0.25),
)


class Inputs:
    """Of a student with V output rows and a teacher with V + 3 of them, which share S."""

    def __init__(self, num_tokens: int = N, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=dtype, generator=generator)

        self.hidden = random(num_tokens, H).requires_grad_()
        self.head = layer(random(V, H), None)
        self.reference = Reference(
            0.6 * random(num_tokens, R), layer(random(V + 3, R), random(V + 3)), S, LogitScaling(0.9, 5.0)
        )
        self.targets = torch.randint(S, (num_tokens,), generator=generator)
        self.values = {"weights": random(num_tokens), "more": random(num_tokens)}

    def fused(self, loss: Any, chunk_size: int = 10, **changes: Any) -> LossSums:
        arguments = {"divergence": TERMS, "reference": self.reference, "temperature": TEMPERATURE}
        return fused_loss(
            self.hidden,
            self.head,
            self.targets,
            self.values,
            loss,
            scale=SCALE,
            chunk_elements=chunk_size * V,
            **(arguments | changes),
        )

    def naive(self) -> TokenScores:
        """By the definitions, over the shared ids."""
        teacher = self.reference
        logits = self.head(self.hidden) / TEMPERATURE
        raw = teacher.hidden_NR @ teacher.head.weight.t() + teacher.head.bias
        theirs = 5.0 * (0.9 * raw / 5.0).tanh() / TEMPERATURE
        for first, second in [teacher.exchanged] if teacher.exchanged else []:
            theirs = theirs.index_copy(1, torch.tensor([first, second]), theirs[:, [second, first]])
        p, q = logits[:, :S].softmax(-1), theirs[:, :S].softmax(-1)
        m = 0.7 * p + 0.3 * q
        ids = q.topk(5).indices
        inside_p, inside_q = p.gather(1, ids), q.gather(1, ids)
        outside_p, outside_q = 1 - inside_p.sum(-1), 1 - inside_q.sum(-1)
        terms = (
            0.5 * kl(p, q)
            + 2.0 * (0.3 * kl(q, m) + 0.7 * kl(p, m))
            + 0.25 * (kl(inside_q, inside_p) + outside_q * (outside_q / outside_p).log())
        )
        return TokenScores(
            targets_N=self.targets,
            logprobs_N=logits.log_softmax(-1).gather(1, self.targets[:, None])[:, 0],
            log_normalisers_N=logits.logsumexp(-1),
            is_top_N=logits.argmax(-1) == self.targets,
            divergence_N=terms,
            reference_logprobs_N=q.log().gather(1, self.targets[:, None])[:, 0].detach(),
        )


def layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    made.weight = nn.Parameter(weight)
    if bias is not None:
        made.bias = nn.Parameter(bias)
    return made


def kl(one: Tensor, other: Tensor) -> Tensor:
    return (one * (one / other).log()).sum(-1)


def loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    """The divergence and everything beside it, another mixture for each token."""
    assert scores.divergence_N is not None
    assert scores.reference_logprobs_N is not None
    advantages = scores.reference_logprobs_N - scores.logprobs_N.detach()
    return TokenLosses(
        values["weights"] * scores.divergence_N
        + 0.1 * scores.divergence_N * scores.logprobs_N
        - scores.logprobs_N * advantages * values["more"],
        means={"teacher": scores.reference_logprobs_N},
    )


def softened(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    """A divergence at one temperature beside the log-probability at another."""
    assert scores.divergence_N is not None
    return TokenLosses(values["weights"] * scores.divergence_N - values["more"] * scores.logprobs_N)


@pytest.mark.parametrize("chunk_size", [5, 1000])
@pytest.mark.parametrize("scaling", [LogitScaling(), LogitScaling(0.9), LogitScaling(0.9, 5.0)])
def test_student_and_teacher_are_compared_at_a_temperature_of_their_own(scaling: LogitScaling, chunk_size: int):
    inputs, at = Inputs(), 2.5
    term = Divergence(kind="forward_kl")
    ours = inputs.fused(
        softened, chunk_size, divergence=(term,), divergence_temperature=at, temperature=TEMPERATURE, scaling=scaling
    )
    factor, cap = scaling
    logits = factor * inputs.head(inputs.hidden)
    logits = logits if cap is None else cap * (logits / cap).tanh()
    teacher = inputs.reference
    raw = teacher.hidden_NR @ teacher.head.weight.t() + teacher.head.bias
    theirs = 5.0 * (0.9 * raw / 5.0).tanh()
    divergence = kl((theirs[:, :S] / at).softmax(-1), (logits[:, :S] / at).softmax(-1))
    logprobs = (logits / TEMPERATURE).log_softmax(-1).gather(1, inputs.targets[:, None])[:, 0]
    total = (inputs.values["weights"] * divergence - inputs.values["more"] * logprobs).sum() * SCALE
    assert_same(ours.loss, total, [inputs.hidden, inputs.head.weight])


def divergence_alone(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    assert scores.divergence_N is not None
    return TokenLosses(scores.divergence_N)


@pytest.mark.parametrize("chunk_size", [1, 5, 36, 37, 1000])
@pytest.mark.parametrize("case", ["plain", "two ids exchanged", "frozen head"])
def test_chunks_with_a_teacher_change_neither_loss_nor_gradients(case: str, chunk_size: int):
    inputs = Inputs()
    if case == "two ids exchanged":
        ids = int(inputs.targets[0]), int(inputs.targets[1])
        assert ids[0] != ids[1]
        inputs.reference = replace(inputs.reference, exchanged=ids)
    inputs.head.requires_grad_(case != "frozen head")
    trained = [tensor for tensor in (inputs.hidden, inputs.head.weight) if tensor.requires_grad]
    ours = inputs.fused(loss, chunk_size)
    naive = loss(inputs.naive(), inputs.values)
    total = naive.losses_N.sum() * SCALE
    assert_close(ours.sums["teacher"], naive.means["teacher"].sum())
    assert_same(ours.loss, total, trained)


def test_teacher_gets_no_gradient():
    inputs = Inputs()
    inputs.reference.hidden_NR.requires_grad_()
    inputs.fused(loss).loss.backward()
    parameters = [inputs.reference.hidden_NR, *inputs.reference.head.parameters()]
    assert [parameter.grad for parameter in parameters] == [None, None, None]


@pytest.mark.parametrize("is_taught", [True, False])
def test_no_tokens_give_zeros_under_the_same_names(is_taught: bool):
    inputs = Inputs(0)
    nothing = inputs.fused(loss, reference=inputs.reference if is_taught else None)
    nothing.loss.backward()
    assert nothing.loss.item() == 0.0
    assert nothing.sums == {"teacher": 0.0}
    assert inputs.head.weight.grad is not None
    assert inputs.head.weight.grad.abs().max() == 0.0


def test_without_a_teacher_nothing_differs():
    inputs = Inputs()
    seen: list[TokenScores] = []

    def remember(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        seen.append(scores)
        return divergence_alone(scores, values)

    alone = inputs.fused(remember, reference=None)
    assert alone.loss.item() == 0.0
    assert torch.autograd.grad(alone.loss, inputs.hidden)[0].abs().max() == 0.0
    for scores in seen:
        torch.testing.assert_close(scores.reference_logprobs_N, scores.logprobs_N.detach())


def test_rows_beyond_the_shared_vocabulary_play_no_part():
    inputs = Inputs()
    (before,) = torch.autograd.grad(inputs.fused(divergence_alone).loss, inputs.head.weight)
    assert before[S:].abs().max() == 0.0
    with torch.no_grad():
        inputs.head.weight[S:] += 3.0
        inputs.reference.head.weight[S:] -= 2.0
    (after,) = torch.autograd.grad(inputs.fused(divergence_alone).loss, inputs.head.weight)
    assert torch.equal(after, before)


def test_target_that_the_teacher_does_not_know_has_no_probability():
    inputs = Inputs()
    inputs.targets[3] = S
    seen: list[Tensor] = []

    def remember(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        assert scores.reference_logprobs_N is not None
        seen.append(scores.reference_logprobs_N)
        return divergence_alone(scores, values)

    assert inputs.fused(remember).loss.isfinite()
    assert torch.cat(seen).isneginf().nonzero().tolist() == [[3]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda teacher: Reference(teacher.hidden_NR[1:], teacher.head, S), "36 positions for 37 targets"),
        (lambda teacher: Reference(teacher.hidden_NR, teacher.head, V + 1), "51 ids.* 50 and 53"),
        (lambda teacher: replace(teacher, exchanged=(2, S)), r"\(2, 44\).* 44 are shared"),
    ],
)
def test_reference_that_does_not_fit_is_refused(change: Callable[[Reference], Reference], message: str):
    inputs = Inputs()
    with pytest.raises(ValueError, match=message):
        inputs.fused(loss, reference=change(inputs.reference))


def test_nothing_as_large_as_all_logits_is_ever_allocated(sizes):
    inputs = Inputs(300)
    with sizes:
        inputs.fused(loss).loss.backward()
    assert max(math.prod(shape) for shape in sizes.shapes) <= max(10 * V, 300 * R)


def test_rows_of_a_chunk_done_in_blocks_are_as_those_done_at_once():
    vocabulary, num_tokens = 200_000, 24
    generator = torch.Generator().manual_seed(0)
    hidden, weight, teacher_hidden, teacher_weight = (
        torch.randn(count, 4, generator=generator).bfloat16() for count in (num_tokens, vocabulary) * 2
    )
    hidden.requires_grad_()
    reference = Reference(teacher_hidden, layer(teacher_weight, None), vocabulary)
    blocks, at_once = (
        fused_loss(
            hidden,
            layer(weight, None),
            torch.arange(num_tokens),
            {"weights": torch.linspace(1, 2, num_tokens), "more": torch.zeros(num_tokens)},
            loss,
            scale=1.0,
            divergence=TERMS,
            reference=reference,
            chunk_elements=size * vocabulary,
        ).loss
        for size in (num_tokens, 5)
    )
    assert block_rows(torch.empty(num_tokens, vocabulary)) in range(5, num_tokens // 2)
    torch.testing.assert_close(blocks, at_once, rtol=1e-6, atol=0)
    (seen,), (expected,) = (torch.autograd.grad(value, hidden) for value in (blocks, at_once))
    torch.testing.assert_close(seen, expected, rtol=1e-6, atol=1e-9)


def test_half_precision_has_float32_values_and_gradients_close_to_the_exact_ones():
    inputs = Inputs(dtype=torch.float32)

    def in_float32(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        compared = (scores.divergence_N, scores.reference_logprobs_N)
        assert all(value is not None and value.dtype is torch.float32 for value in compared)
        return divergence_alone(scores, values)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = inputs.fused(in_float32).loss
    exact = inputs.fused(divergence_alone).loss
    torch.testing.assert_close(half, exact, rtol=1e-2, atol=0)
    (seen,), (expected,) = (torch.autograd.grad(value, inputs.hidden) for value in (half, exact))
    assert (seen - expected).norm() < 0.02 * expected.norm()


@pytest.mark.gpu
def test_gpu_and_cpu_agree_about_a_teacher_on_the_host():
    here, there = Inputs(), Inputs()
    there.hidden = there.hidden.detach().cuda().requires_grad_()
    there.head, there.targets = there.head.cuda(), there.targets.cuda()
    there.values = {name: value.cuda() for name, value in there.values.items()}
    expected, seen = (
        torch.autograd.grad(inputs.fused(loss).loss, [inputs.hidden, inputs.head.weight]) for inputs in (here, there)
    )
    for one, other in zip(seen, expected, strict=True):
        assert_close(one.cpu(), other)
