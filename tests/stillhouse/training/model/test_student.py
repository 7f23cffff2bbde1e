from pathlib import Path

import pytest
import torch

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.serving.models import load_model
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks

LORA = StudentConfig(parameters="lora", lora_rank=4, lora_alpha=8, dtype="float32", max_length=512)
CPU = torch.device("cpu")
ALONE = Ranks.single(CPU)
INPUTS = torch.tensor([[5, 6, 7, 8]])


def logits(student: Student) -> torch.Tensor:
    with torch.no_grad():
        return student.causal_lm(input_ids=INPUTS).logits


def disturb(student: Student) -> None:
    with torch.no_grad():
        for _, parameter in student.trained_parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_saved_student_is_a_model_ref_with_the_same_logits(tiny_model: str, tmp_path: Path, parameters: str):
    student = load_student(tiny_model, LORA.model_copy(update={"parameters": parameters}), CPU, seed=0)
    before = logits(student)
    disturb(student)
    student.save(tmp_path / "student", ALONE)
    served = load_model(str(tmp_path / "student"), device="cpu")
    with torch.no_grad():
        seen = served(input_ids=INPUTS).logits
    assert (seen - before).abs().max() > 1e-3
    torch.testing.assert_close(seen, logits(student), rtol=1e-4, atol=1e-5)
    assert load_tokenizer(str(tmp_path / "student")).chat_template == student.tokenizer.chat_template
