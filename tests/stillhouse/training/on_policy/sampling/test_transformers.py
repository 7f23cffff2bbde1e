import pytest
import torch

from stillhouse.config import StudentConfig
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines

PROMPT = [5, 9, 40, 7, 11]
REQUESTS = [GenerationRequest(PROMPT[:length], 24, seed=length) for length in (3, 4, 5)]


def student_of(parameters: str, dtype: str) -> Student:
    """A student that has learnt something, so that an adapter is not all zeros."""
    config = StudentConfig.model_validate({"parameters": parameters, "dtype": dtype})
    student = load_student("embedded:student", config, torch.device("cpu"), seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in student.trained_parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return student


def by_forward_pass(student: Student) -> list[Generation]:
    """As the student's own forward pass samples."""
    with student.precision():
        return Generator(student.causal_lm).run(REQUESTS)


def by_engine(student: Student) -> list[Generation]:
    with TransformersEngines(student, 8).engine(0) as engine:
        assert isinstance(engine, Generator)
        return engine.run(REQUESTS)


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_weights_converted_once_give_the_bits_of_autocast(parameters: str):
    student = student_of(parameters, "bfloat16")
    assert by_engine(student) == by_forward_pass(student)


def test_merged_adapter_samples_what_the_adapter_beside_the_weights_samples():
    student = student_of("lora", "float32")
    for merged, apart in zip(by_engine(student), by_forward_pass(student), strict=True):
        assert merged.completion_ids == apart.completion_ids
        assert merged.logprobs == pytest.approx(apart.logprobs, abs=1e-5)


@pytest.mark.parametrize(("parameters", "dtype"), [("lora", "float32"), ("full", "bfloat16")])
def test_student_is_what_it_was_after_sampling_also_when_that_fails(parameters: str, dtype: str):
    student = student_of(parameters, dtype)
    student.model.train()
    before = dict(student.model.named_parameters())
    values = {name: value.detach().clone() for name, value in before.items()}
    by_engine(student)
    with pytest.raises(RuntimeError), TransformersEngines(student, 8).engine(0):
        raise RuntimeError
    after = dict(student.model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before), "the optimiser holds these very tensors"
    assert all(torch.equal(after[name], values[name]) for name in before)
    assert student.model.training
    with student.precision():
        student.causal_lm(input_ids=torch.tensor([PROMPT])).logits.float().sum().backward()
    assert all(parameter.grad is not None for _, parameter in student.trained_parameters())
