import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from flows.cli import app
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError, InputError
from stillhouse.serving.models import load_model
from stillhouse.store import ArtifactStore
from stillhouse.store.runs import RunRecord, write_run_record
from stillhouse.training.results.record import StudentRecord

Publish = Callable[..., str]


@pytest.fixture
def publish() -> Publish:
    """Return what `stillhouse publish` prints."""

    def run(*args: str) -> str:
        done = CliRunner().invoke(app, ["publish", *args])
        if done.exception is not None:
            raise done.exception
        return done.output

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a run that trained an adapter and measured it."""
    store = ArtifactStore(tmp_path / "runs")

    def fill(folder: Path) -> tuple[int, dict[str, object]]:
        base = AutoModelForCausalLM.from_pretrained(embedded_path("student"))
        torch.manual_seed(0)
        adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
        adapted.peft_config["default"].base_model_name_or_path = "embedded:student"
        adapted.save_pretrained(folder)
        load_tokenizer("embedded:student").save_pretrained(folder)
        student = {"model": "embedded:student", "parameters": "lora", "dtype": "float32"}
        student |= {"lora_variant": "lora", "lora_rank": 4, "lora_alpha": 8.0}
        StudentRecord(
            method="sft",
            base="embedded:student",
            started_from="embedded:student",
            config={"student_ref": "student@1", "student": student, "sft": {"seed": 0}},
            facts={"steps": 3},
        ).write(folder)
        return 0, {}

    student = store.write("sft", "a" * 16, fill)
    measured = store.write("evaluation", "b" * 16, lambda folder: (0, {"accuracy": 0.75, "num_prompts": 40}))
    artifacts = {"sft": [student.uri], "evaluation of sft": [measured.uri]}
    record = RunRecord("distill", "2026-01-01T00:00:00+00:00", None, None, "quiet-still", artifacts)
    write_run_record(store.root / "reports/20260101-000000", record)
    return store.root


def test_the_last_student_of_a_run_is_merged_with_what_the_run_measured_on_its_card(
    publish, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert publish("quiet-still", "--merge", "-o", str(out), "--store", str(store)) == f"{out}\n"
    assert "| sft | 75.0\u202f% |" in (out / "README.md").read_text()
    (folder,) = (store / "artifacts/sft").iterdir()
    tokens = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(
        load_model(str(out), device="cpu")(tokens).logits,
        load_model(str(folder), device="cpu")(tokens).logits,
        rtol=1e-4,
        atol=1e-4,
    )
    assert json.loads((out / "student.json").read_text())["merged"]["difference"] < 1e-5


def test_a_push_without_a_token_or_of_nothing_is_told_before_anything_leaves(
    publish, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (folder,) = (store / "artifacts/sft").iterdir()
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        publish(str(folder), "--merge", "--push", "me/small")
    # Refused before the hub is asked, which would not know this token.
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    with pytest.raises(ConfigError, match="--merge"):
        publish("--store", str(store), "--push", "me/small")
    record = RunRecord("generate", "2026-01-02T00:00:00+00:00", None, None, None, {"dataset": ["d"]})
    write_run_record(store / "reports/20260102-000000", record)
    with pytest.raises(InputError, match="dataset"):
        publish("--store", str(store), "-o", "out")


def test_a_form_is_refused_before_anything_is_written_where_it_cannot_be_made_or_compared(
    publish, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path))
    out = ("--store", str(store), "-o", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="--type is of GGUF files"):
        publish(*out, "--to", "hf", "--type", "q8_0")
    with pytest.raises(ConfigError, match="--type 'q9': expected one of f32, f16"):
        publish(*out, "--to", "gguf", "--type", "q9")
    with pytest.raises(ConfigError, match=r"holds no convert_hf_to_gguf\.py.*run `make llama-cpp`"):
        publish(*out, "--to", "gguf")
    (folder,) = (store / "artifacts/sft").iterdir()
    local = Path(shutil.copytree(folder, tmp_path / "local", ignore=shutil.ignore_patterns("manifest.json")))
    adapter = local / "adapter_config.json"
    adapter.write_text(adapter.read_text().replace("embedded:student", str(tmp_path)))
    with pytest.raises(ConfigError, match=r"not on the Hugging Face Hub.*write merged weights with --merge"):
        publish(str(local), "-o", str(tmp_path / "out"), "--to", "vllm")
    with pytest.raises(InputError, match="compared with its student on held-out prompts, and none are known"):
        publish(*out, "--to", "hf")
    assert not (tmp_path / "out").exists()
