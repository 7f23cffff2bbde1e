from importlib.util import find_spec

import pytest
import torch

from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.load import load_student

INPUTS = torch.tensor([[5, 6, 7, 8]])


def config(**changes: object) -> StudentConfig:
    return StudentConfig.model_validate({"parameters": "qlora", "lora_rank": 4, "max_length": 512} | changes)


def test_four_bits_on_a_cpu_are_refused_with_all_that_is_missing(tiny_model: str):
    missing = r"needs a CUDA device \(the job's device is 'cpu'\)"
    if find_spec("bitsandbytes") is None:
        missing += r" and the package bitsandbytes \(pip install 'stillhouse\[quantised\]'\)"
    with pytest.raises(ConfigError, match=missing + r"\. Set student\.parameters to `lora`"):
        load_student(tiny_model, config(), torch.device("cpu"), seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["lora", "dora"])
def test_adapter_over_four_bits_learns_and_speaks_like_the_unquantised_model(tiny_model: str, variant: str):
    pytest.importorskip("bitsandbytes")
    cuda = torch.device("cuda")
    student = load_student(tiny_model, config(lora_variant=variant), cuda, seed=0)
    whole = load_student(tiny_model, config(parameters="lora", dtype="float32"), cuda, seed=0)
    layer = student.causal_lm.get_submodule("model.layers.0.mlp.up_proj.base_layer")
    assert layer.weight.dtype is torch.uint8
    assert student.head.weight.dtype is torch.bfloat16
    inputs = INPUTS.to(cuda)
    with torch.no_grad():
        expected = whole.causal_lm(input_ids=inputs).logits
    with student.precision():
        logits = student.causal_lm(input_ids=inputs).logits.float()
    assert (logits - expected).norm() < 0.2 * expected.norm()
    logits.square().sum().backward()
    assert all(p.grad is not None for name, p in student.trained_parameters() if "lora_A" not in name)
