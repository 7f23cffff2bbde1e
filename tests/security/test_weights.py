"""Models of others that hold code or pickles in place of weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from stillhouse.chat.refs import resolve_model
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config.training import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.serving.models import load_model
from stillhouse.training.model.load import load_student


def _of_a_stranger(folder: Path) -> Path:
    return Path(shutil.copytree(resolve_model("embedded:student"), folder / "model"))


def _as_pickle(folder: Path, name: str) -> None:
    weights = folder / f"{name}.safetensors"
    torch.save(load_file(weights), folder / f"{'pytorch_model' if name == 'model' else name}.bin")
    weights.unlink()


def _adapter(tmp_path: Path) -> Path:
    model = get_peft_model(load_model("embedded:student", device="cpu"), LoraConfig(r=2, target_modules=["q_proj"]))
    model.peft_config["default"].base_model_name_or_path = "embedded:student"
    model.save_pretrained(tmp_path / "adapter")
    load_tokenizer("embedded:student").save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(("make", "name"), [(_of_a_stranger, "model"), (_adapter, "adapter_model")])
def test_weights_in_a_pickle_are_refused(make: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    model = make(tmp_path)
    _as_pickle(model, name)
    with pytest.raises(ConfigError, match="safetensors"):
        load_model(str(model), device="cpu")
    with pytest.raises(ConfigError, match="safetensors"):
        load_student(str(model), StudentConfig(model=str(model), parameters="full"), torch.device("cpu"), 0)


def test_code_that_comes_with_a_model_is_not_run_and_nobody_is_asked_to_run_it(tmp_path: Path) -> None:
    model = _of_a_stranger(tmp_path)
    seen = tmp_path / "code-ran"
    code = f"open({str(seen)!r}, 'w').close()\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    (model / "theirs.py").write_text(code, encoding="utf-8")
    about = json.loads((model / "config.json").read_text(encoding="utf-8"))
    about |= {
        "model_type": "theirs",
        "auto_map": {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"},
    }
    (model / "config.json").write_text(json.dumps(about), encoding="utf-8")
    settings = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": ["theirs.Tokenizer", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ConfigError, match="loaded"):
        load_model(str(model), device="cpu")
    with pytest.raises(ConfigError, match="loaded"):
        load_tokenizer(str(model))
    assert not seen.exists()
