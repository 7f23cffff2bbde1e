"""Planted faults in the weights of a student, each of which its certificate refuses with the cause."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import DistillConfig
from stillhouse.embedded import embedded_path
from stillhouse.errors import TrainingError
from stillhouse.store import ArtifactStore
from stillhouse.store.fingerprint import prompt_id
from stillhouse.store.runs import RunRecord
from stillhouse.training.results.portable import make_portable
from stillhouse.training.results.record import StudentRecord
from stillhouse.types import Prompt, PromptMetadata
from tasks.certification import Subject, certify
from tasks.prompts import write_metadata, write_prompts

Fault = Callable[[Path], None]
_BASE = "embedded:student"


def _adapted(scale: float = 1.0) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(embedded_path("student"))
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=2.0 * scale, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(base, config)
    adapted.peft_config["default"].base_model_name_or_path = _BASE
    return adapted


def _write(folder: Path, model: torch.nn.Module) -> None:
    model.save_pretrained(folder)
    load_tokenizer(_BASE).save_pretrained(folder)
    StudentRecord(
        method="sft", base=_BASE, started_from=_BASE, config={"student_ref": "student@1"}, facts={"steps": 3}
    ).write(folder)
    (folder / "README.md").write_text("# A student\n")
    make_portable(folder)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Return a student whose adapter changes its base, and ten held-out word problems."""
    root = tmp_path_factory.mktemp("runs")
    store = ArtifactStore(root)
    rows = [json.loads(line) for line in embedded_path("prompts.jsonl").read_text().splitlines()[:10]]
    prompts, metadata = [], []
    for row in rows:
        messages = [{"role": "user", "content": row["prompt"]}]
        prompts.append(Prompt(prompt_id(messages, ["calculator"]), messages, ["calculator"]))
        known = row.get("metadata") or {}
        metadata.append(PromptMetadata(prompts[-1].id, str(known["expected_answer"]), None, "numeric", {}))
    made = [write_prompts(store, prompts), write_metadata(store, metadata)]
    config = DistillConfig.model_validate(
        {
            "prompts": {"source": "embedded:prompts.jsonl"},
            "teacher": {"model": "embedded:teacher"},
            "student": {"model": _BASE},
            "tools": {"builtin": ["calculator"]},
            "evaluation": {"max_tokens": 48, "max_turns": 6},
            "runtime": {"num_threads": 1},
        }
    )
    folder = root / "student"
    _write(folder, _adapted())
    record = RunRecord(
        "distill", "2026-01-01T00:00:00+00:00", None, None, None, {}, config=config.model_dump(mode="json")
    )
    record.artifacts["prompts"] = [artifact.uri for artifact in made * 2]
    return Subject.of(folder, record, 10, str(root))


@pytest.fixture
def form(tmp_path: Path) -> Path:
    """Return the student with its adapter merged in."""
    _write(tmp_path / "form", _adapted().merge_and_unload())
    return tmp_path / "form"


def test_merged_weights_are_certified_as_the_student(subject: Subject, form: Path) -> None:
    certificate = certify(subject, form, "transformers")
    assert certificate.problems == []
    seen = {check.name: check.form for check in certificate.checks}
    assert seen["end tokens"] == "<|im_end|>"
    assert seen["same answers"] == "10 (100.0\u202f%)"
    certificate.write(form)
    assert json.loads((form / "certificate.json").read_bytes())["refused"] is False
    assert "| KL a token |" in (form / "README.md").read_text()


def _edited(name: str, **changes: object) -> Fault:
    def fault(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return fault


def _with_another_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("<|im_start|>", "<|im_start|> "))


def _with_another_rope(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = config["rope_parameters"] | {"rope_theta": 20000.0}
    path.write_text(json.dumps(config | {"rope_theta": 20000.0}))


def _with_a_row_less(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size - 1)
    model.save_pretrained(folder)


def _with_an_untied_head(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 0.01)
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (_with_another_template, r"rendered prompts: \d+ of \d+ differ; at character 0 expected '<|im_start|>"),
        (_edited("generation_config.json", eos_token_id=0), r"end tokens: expected <\|im_end\|>, saw none"),
        (_with_another_rope, r"RoPE base: expected 10,000.0, saw 20,000.0"),
        (_with_an_untied_head, "output layer tied: expected yes, saw no"),
        (_with_a_row_less, "vocabulary: expected 619, saw 618"),
    ],
)
def test_a_form_that_says_something_else_is_refused_with_the_cause(
    subject: Subject, form: Path, fault: Fault, cause: str
) -> None:
    fault(form)
    with pytest.raises(TrainingError, match=cause):
        certify(subject, form, "transformers").require()


@pytest.mark.parametrize(("scale", "cause"), [(2.0, "its adapter is merged twice"), (0.0, "its adapter is not in it")])
def test_an_adapter_that_is_merged_twice_or_not_at_all_is_named(
    subject: Subject, tmp_path: Path, scale: float, cause: str
) -> None:
    _write(tmp_path / "form", _adapted(scale).merge_and_unload())
    with pytest.raises(TrainingError, match=rf"KL a token: .* expected at most 0.02; {cause}"):
        certify(subject, tmp_path / "form", "transformers").require()
