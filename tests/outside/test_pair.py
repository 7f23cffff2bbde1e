"""Faults of a pretrained pair: SmolLM2-135M-Instruct as both student and teacher, one of them with a fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stillhouse.config import parse_config
from stillhouse.training.pair.finding import PairFinding
from tasks.pair.stage import examine_config

pytestmark = pytest.mark.outside

CAPITALS = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Japan": "Tokyo"}
CAPITALS |= {"Greece": "Athens", "Egypt": "Cairo", "Russia": "Moscow", "Austria": "Vienna", "England": "London"}
BASE_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}User: {{ m['content'] }}\n\n"
    "{% elif m['role'] == 'assistant' %}Assistant: {{ m['content'] }}<|im_end|>\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
"""As of a base model (tinker-cookbook#796)."""


def base_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(BASE_TEMPLATE)


def end_of_document(folder: Path) -> None:
    for name, change in {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
        "generation_config.json": {"eos_token_id": 0},
    }.items():
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **change}))


def change_weights(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    file = folder / "model.safetensors"
    weights = {name: change(name, value) for name, value in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


def shifted(folder: Path) -> None:
    change_weights(
        folder, lambda name, value: value.roll(1, 0).contiguous() if name.endswith("embed_tokens.weight") else value
    )


def weaker(folder: Path) -> None:
    chance = torch.Generator().manual_seed(0)
    noise = 0.3
    change_weights(
        folder,
        lambda name, value: (
            value + noise * value.std() * torch.randn(value.shape, generator=chance) if value.ndim == 2 else value
        ),
    )


@pytest.fixture(scope="module")
def faulty(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[Path], None]], Path]:
    """A copy of the model with a fault."""

    def make(fault: Callable[[Path], None]) -> Path:
        folder = tmp_path_factory.mktemp("faulty") / fault.__name__
        shutil.copytree(pretrained, folder)
        fault(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Path], dict[str, PairFinding]]:
    store = tmp_path_factory.mktemp("pretrained")
    source = store / "prompts.jsonl"
    rows = [
        {"prompt": f"What is the capital of {country}?", "metadata": {"expected_answer": capital}}
        for country, capital in CAPITALS.items()
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(student: Path, teacher: Path) -> dict[str, PairFinding]:
        limits = {"max_tokens": 24, "max_turns": 1}
        body = {
            "prompts": {"source": str(source), "held_out_fraction": 0.0, "verifier": "contains"},
            "teacher": {"model": str(teacher)},
            "student": {"model": str(student), "parameters": "lora", "dtype": "float32", "max_length": 256},
            "sft": {"enabled": False},
            "on_policy": {"enabled": True, "prompts_per_step": 4, "num_steps": 20, **limits},
            "evaluation": {"temperature": 0.0, **limits},
            "runtime": {"store": str(store / "runs"), "device": "cpu"},
        }
        return {finding.name: finding for finding in examine_config(parse_config(body, origin="test"))}

    return run


def graver(findings: dict[str, PairFinding]) -> dict[str, str]:
    return {name: finding.level for name, finding in findings.items() if finding.level in ("change", "no")}


def test_a_model_fits_itself(pretrained: Path, examined: Callable[[Path, Path], dict[str, PairFinding]]) -> None:
    findings = examined(pretrained, pretrained)
    # Of answers that are cut off, the tokens are not to blame.
    assert not graver(findings).keys() - {"student: ends"}, findings


@pytest.mark.parametrize(
    ("part", "fault", "alarm", "level"),
    [
        ("student", base_template, "teacher: rendering", "change"),
        ("student", end_of_document, "teacher: ends", "change"),
        ("teacher", shifted, "teacher: tokens", "no"),
        ("teacher", weaker, "teacher: better", "no"),
    ],
)
def test_a_fault_is_found(
    pretrained: Path,
    faulty: Callable[[Callable[[Path], None]], Path],
    examined: Callable[[Path, Path], dict[str, PairFinding]],
    part: str,
    fault: Callable[[Path], None],
    alarm: str,
    level: str,
) -> None:
    pair = {"student": pretrained, "teacher": pretrained, part: faulty(fault)}
    findings = examined(pair["student"], pair["teacher"])
    assert findings[alarm].level == level, findings
