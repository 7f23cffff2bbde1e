from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn

from stillhouse.config import StudentConfig
from stillhouse.training.model.blocks import prepare_blocks
from stillhouse.training.model.load import load_student
from stillhouse.training.model.offload import activation_offload
from stillhouse.training.model.student import Student


def gradients(student: Student) -> list[torch.Tensor]:
    student.model.train()
    torch.manual_seed(0)
    inputs = torch.randint(100, (2, 20), device=student.device)
    with student.precision():
        hidden = student.step.backbone(input_ids=inputs, use_cache=False).last_hidden_state.float()
    hidden[..., ::3].sum().backward()
    return [p.grad for _, p in student.trained_parameters() if p.grad is not None]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_gradients_are_the_same_bits(tiny_model: str, parameters: str, checkpointed: bool):
    config = StudentConfig(parameters=parameters, lora_rank=4, lora_dropout=0.3, dtype="bfloat16")
    here, offloaded = (load_student(tiny_model, config, torch.device("cpu"), seed=0) for _ in range(2))
    if checkpointed:
        prepare_blocks(offloaded.causal_lm, compiled=False, checkpointed=True)
    expected = gradients(here)
    with activation_offload(min_bytes=1):
        seen = gradients(offloaded)
    assert len(expected) > 10
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("is_trained", [False, True])
def test_weights_stay_and_activations_are_copied(is_trained: bool, is_cast: bool):
    layer = nn.Linear(8, 8, bias=False).requires_grad_(is_trained)
    if not is_trained and is_cast:
        layer.to(torch.bfloat16)
    offload = activation_offload(min_bytes=1)
    stays: list[bool] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        stays.append(offload.pack_hook(tensor) is tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast),
    ):
        layer(torch.randn(3, 8, requires_grad=True).tanh())
    # tanh keeps its result, the layer its weight and, where that is trained, its input.
    assert stays == ([False, True, False] if is_trained else [False, True])


def test_small_tensors_stay():
    small, large = torch.zeros(8), torch.zeros(1 << 20)
    hooks = activation_offload()
    assert hooks.pack_hook(small) is small
    assert torch.equal(hooks.unpack_hook(hooks.pack_hook(large)), large)
    assert hooks.pack_hook(large) is not large


@pytest.mark.gpu
def test_activations_leave_the_device_until_they_are_used():
    weights = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(8)]

    def run(context: AbstractContextManager[object]) -> tuple[list[torch.Tensor], int]:
        hidden = torch.ones(8192, 1024, device="cuda", requires_grad=True)
        with context:
            for weight in weights:
                hidden = (hidden @ weight).tanh()
        kept = torch.cuda.memory_allocated()
        return list(torch.autograd.grad(hidden.sum(), weights)), kept

    expected, most = run(nullcontext())
    seen, least = run(activation_offload())
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert most - least > 6 * 8192 * 1024 * 4
