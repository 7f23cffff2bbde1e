import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from stillhouse.chat.refs import resolve_model
from stillhouse.errors import ConfigError
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens
from stillhouse.serving.worker import ModelWorker


def test_an_adapter_folder_is_loaded_as_its_base_with_the_adapter_merged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = load_model("embedded:student", device="cpu")
    tokens = torch.tensor([[5, 6, 7, 8]])
    plain = base(tokens).logits
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = "embedded:student"
    adapted.save_pretrained(tmp_path)
    expected = adapted.eval()(tokens).logits
    merged = load_model(str(tmp_path), device="cpu")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert torch.allclose(merged(tokens).logits, expected, atol=1e-4)
    assert not torch.allclose(plain, expected, atol=1e-2)


def test_a_model_with_a_live_adapter_samples_and_scores_with_it() -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(load_model("embedded:student", device="cpu"), config).eval()
    prompt = [5, 6, 7, 8]
    [generation] = Generator(model).run([GenerationRequest(prompt, 20)])
    tokens = [*prompt, *generation.completion_ids]
    with torch.no_grad():
        logprobs = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    assert generation.logprobs == pytest.approx(expected[3:], abs=1e-4)
    assert score_tokens(model, [tokens])[0][1:] == pytest.approx(expected, abs=1e-4)


def test_a_loaded_model_is_in_evaluation_mode_without_gradients_in_the_type_asked_for() -> None:
    model = load_model("embedded:student", device="cpu", dtype="bfloat16")
    assert not model.training
    assert {(parameter.dtype, parameter.requires_grad) for parameter in model.parameters()} == {(torch.bfloat16, False)}


def test_a_folder_without_a_model_and_weights_that_are_cut_off_are_config_errors_naming_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_model(str(tmp_path), device="cpu")
    shutil.copytree(resolve_model("embedded:student"), tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"cut' cannot be loaded"):
        load_model(str(tmp_path / "cut"), device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_asking_for_cuda_where_there_is_none_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        load_model("embedded:student", device="cuda")


REQUEST = GenerationRequest([5, 9, 40, 7, 11], 30, seed=3)


@pytest.fixture
def worker() -> Iterator[ModelWorker]:
    worker = ModelWorker(load_model("embedded:student", device="cpu"), max_batch=4)
    worker.start()
    yield worker
    worker.stop()
    worker.join(120)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two adapters of the embedded student."""
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:student"))
        adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        made.append(str(tmp_path_factory.mktemp("adapter")))
        adapted.save_pretrained(made[-1], save_embedding_layers=False)
    return made


def alone(model: PreTrainedModel | str) -> Generation:
    """The completion of a model, or of that of a folder, by itself."""
    loaded = load_model(model, device="cpu") if isinstance(model, str) else model
    return Generator(loaded).run([REQUEST])[0]


def load(worker: ModelWorker, name: str, folder: str, *, in_place: bool = False) -> None:
    worker.change(lambda adapted: adapted.load(name, folder, in_place=in_place), name).result(120)


def reload(worker: ModelWorker, folder: str) -> None:
    worker.change(lambda adapted: adapted.reload(folder), None).result(120)


def assert_same(seen: Generation, expected: Generation) -> None:
    assert seen.completion_ids == expected.completion_ids
    assert seen.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_each_request_is_answered_by_the_adapter_it_names(
    worker: ModelWorker, folders: list[str], model: PreTrainedModel
) -> None:
    by_name = dict(zip(("v1", "v2.0"), folders, strict=True))
    for name, folder in by_name.items():
        load(worker, name, folder)
    assert worker.adapters == by_name
    expected = {"v1": alone(folders[0]), None: alone(model), "v2.0": alone(folders[1])}
    answers = [(name, worker.sample(REQUEST, name)) for name in ("v1", None, "v2.0", "v1")]
    for name, answer in answers:
        assert_same(answer.result(120), expected[name])
    tokens = [*REQUEST.prompt_ids, *expected["v2.0"].completion_ids]
    ranked = worker.score(tokens, num_top=0, adapter="v2.0").result(120)
    assert [token.logprob for token in ranked[-30:]] == pytest.approx(expected["v2.0"].logprobs, abs=1e-4)


def test_an_adapter_is_replaced_in_place_and_dropped(
    worker: ModelWorker, folders: list[str], model: PreTrainedModel
) -> None:
    load(worker, "a", folders[0])
    worker.sample(REQUEST, "a").result(120)
    with pytest.raises(ValueError, match="already been loaded"):
        load(worker, "a", folders[1])
    load(worker, "a", folders[1], in_place=True)
    assert_same(worker.sample(REQUEST, "a").result(120), alone(folders[1]))
    worker.change(lambda adapted: adapted.unload("a"), "a").result(120)
    assert worker.adapters == {}
    assert_same(worker.sample(REQUEST).result(120), alone(model))
    with pytest.raises(ValueError, match="unloaded"):
        worker.sample(REQUEST, "a").result(120)


def test_new_weights_take_the_place_of_the_models_and_of_adapters(
    worker: ModelWorker, folders: list[str], tmp_path: Path
) -> None:
    load(worker, "a", folders[0])
    load_model(folders[1], device="cpu").save_pretrained(tmp_path)
    worker.sample(REQUEST).result(120)
    reload(worker, str(tmp_path))
    assert worker.adapters == {}
    assert_same(worker.sample(REQUEST).result(120), alone(folders[1]))


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_folders_that_cannot_be_loaded_are_refused_and_change_nothing(
    worker: ModelWorker, folder: str, model: PreTrainedModel
) -> None:
    with pytest.raises(ValueError, match=f"No adapter found for '{folder}'"):
        load(worker, "a", folder)
    with pytest.raises(ValueError, match="cannot be loaded"):
        reload(worker, folder)
    assert_same(worker.sample(REQUEST).result(120), alone(model))


def test_weights_that_are_being_sampled_from_are_not_changed(worker: ModelWorker, folders: list[str]) -> None:
    long = worker.sample(GenerationRequest([5], 1000, temperature=3.0))
    with pytest.raises(ValueError, match="1 completions"):
        reload(worker, folders[0])
    load(worker, "a", folders[0])
    assert not long.done(), "an adapter that nobody uses yet does not wait"
