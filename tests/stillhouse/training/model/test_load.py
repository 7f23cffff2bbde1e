import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.serving.models import load_model
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from stillhouse.training.results.portable import make_portable
from tests.stillhouse.training.trainings import disturb

LORA = StudentConfig(parameters="lora", lora_rank=4, lora_alpha=8, dtype="float32", max_length=512)
CPU = torch.device("cpu")
ALONE = Ranks.single(CPU)
INPUTS = torch.tensor([[5, 6, 7, 8]])


def logits(student: Student) -> torch.Tensor:
    with torch.no_grad():
        return student.causal_lm(input_ids=INPUTS).logits


def test_start_of_a_new_adapter_depends_on_the_seed(tiny_model: str):
    first, again, other = (load_student(tiny_model, LORA, CPU, seed) for seed in (0, 0, 1))
    one, same, different = (dict(student.trained_parameters()) for student in (first, again, other))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], different[name]) for name in one)


def test_full_training_keeps_float32_weights_and_computes_in_the_config_type(tiny_model: str):
    config = StudentConfig(parameters="full", dtype="bfloat16")
    student = load_student(tiny_model, config, CPU, seed=0)
    assert all(p.dtype is torch.float32 for _, p in student.trained_parameters())
    with student.precision():
        assert student.causal_lm(input_ids=INPUTS).logits.dtype is torch.bfloat16


def test_earlier_adapter_is_continued_over_its_own_base(tiny_model: str, tmp_path: Path):
    first = load_student(tiny_model, LORA, CPU, seed=0)
    disturb(first)
    first.save(tmp_path / "first", ALONE)
    second = load_student(str(tmp_path / "first"), LORA, CPU, seed=5)
    assert second.base_ref == tiny_model
    torch.testing.assert_close(logits(second), logits(first), rtol=0, atol=0)
    assert [name for name, _ in second.trained_parameters()] == [name for name, _ in first.trained_parameters()]
    second.save(tmp_path / "second", ALONE)
    assert f'"base_model_name_or_path": "{tiny_model}"' in (tmp_path / "second" / "adapter_config.json").read_text()


def test_an_adapter_over_a_model_of_the_hub_stays_over_the_commit_that_it_was_trained_over(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its training and its use somebody pushes other weights."""
    repository = tmp_path / "hub" / "models--org--small"
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(tiny_model, repository / "snapshots" / commit)
    weights = load_file(repository / "snapshots" / ("b" * 40) / "model.safetensors")
    save_file({name: weight + 0.1 for name, weight in weights.items()},
              repository / "snapshots" / ("b" * 40) / "model.safetensors", {"format": "pt"})  # fmt: skip
    main = repository / "refs" / "main"
    main.parent.mkdir()
    main.write_text("a" * 40)
    # Read from the environment when the library is imported.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    load_student("org/small", LORA, CPU, seed=0).save(tmp_path / "student", ALONE)
    make_portable(tmp_path / "student")
    assert json.loads((tmp_path / "student" / "adapter_config.json").read_text())["revision"] == "a" * 40
    before = load_model(str(tmp_path / "student"), device="cpu")(INPUTS).logits
    main.write_text("b" * 40)
    after = load_model(str(tmp_path / "student"), device="cpu")(INPUTS).logits
    newest = load_model("org/small", device="cpu")(INPUTS).logits
    assert torch.equal(before, after)
    assert not torch.equal(after, newest)


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


def test_a_model_that_is_missing_or_whose_weights_are_cut_off_is_refused_by_name(tiny_model: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        load_student(str(tmp_path / "nowhere"), LORA, CPU, seed=0)
    shutil.copytree(tiny_model, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cut'"):
        load_student(str(tmp_path / "cut"), LORA, CPU, seed=0)


def config(**changes: object) -> StudentConfig:
    return StudentConfig.model_validate({"parameters": "qlora", "lora_rank": 4, "max_length": 512} | changes)


def test_four_bits_on_a_cpu_are_refused_with_all_that_is_missing(tiny_model: str):
    package = "" if find_spec("bitsandbytes") else r"stillhouse\[quantised\].*"
    with pytest.raises(ConfigError, match=rf"CUDA.*'cpu'.*{package}student\.parameters to `lora`"):
        load_student(tiny_model, config(), torch.device("cpu"), seed=0)


@pytest.mark.gpu
def test_adapter_over_four_bits_learns_and_speaks_like_the_unquantised_model(tiny_model: str):
    pytest.importorskip("bitsandbytes")
    cuda = torch.device("cuda")
    student = load_student(tiny_model, config(), cuda, seed=0)
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
