"""The embedded pair with one fault in it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stillhouse.config import load_config
from stillhouse.embedded import embedded_path
from stillhouse.training.pair.finding import PairFinding
from tasks.pair.stage import examine_config

ROOT = Path(__file__).resolve().parents[3]
END_OF_TURN = 2

Weights = dict[str, torch.Tensor]
Change = Callable[[Path], None]


def another_template(folder: Path) -> None:
    """Other words around each turn, as a base model's template has them; both models know the present ones alone."""
    file = folder / "chat_template.jinja"
    file.write_text(file.read_text().replace("<|im_start|>", "\n\n## "))


def other_weights(change: Callable[[Weights], None]) -> Change:
    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        weights = load_file(file)
        change(weights)
        save_file(weights, file, metadata={"format": "pt"})

    return apply


def _shift(weights: Weights) -> None:
    name = "model.embed_tokens.weight"
    weights[name] = weights[name].roll(1, 0).contiguous()


def _turn_end_round(weights: Weights) -> None:
    """Input and output layer are one: an end token of the opposite sign is never sampled."""
    weights["model.embed_tokens.weight"][END_OF_TURN] *= -1.0


def _add_noise(weights: Weights) -> None:
    chance = torch.Generator().manual_seed(0)
    for name, value in weights.items():
        if value.ndim == 2:
            weights[name] = value + 0.6 * value.std() * torch.randn(value.shape, generator=chance)


FAULTS: dict[str, Change] = {
    "another template": another_template,
    "shifted": other_weights(_shift),
    "no end": other_weights(_turn_end_round),
    "noise": other_weights(_add_noise),
}


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """Return `faulty("teacher", "shifted")`: the folder of an embedded model with a fault of `FAULTS`."""
    folder = tmp_path_factory.mktemp("faulty")

    def make(model: str, fault: str) -> str:
        path = folder / f"{model}-{fault.replace(' ', '-')}"
        if not path.exists():
            shutil.copytree(embedded_path(model), path)
            FAULTS[fault](path)
        return str(path)

    return make


@pytest.fixture(scope="session")
def pair_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one store, so that models answer once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def examined(pair_store: Path) -> Callable[..., dict[str, PairFinding]]:
    """Return the findings by name for a config of the repository, with `section__key=value` changes."""

    def run(name: str = "on_policy/pure_agentic", num_prompts: int = 16, **changes: Any) -> dict[str, PairFinding]:
        overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
        overrides += [f"runtime.store={pair_store}", "runtime.device=cpu"]
        config = load_config(ROOT / "configs" / f"{name}.yaml", overrides)
        return {finding.name: finding for finding in examine_config(config, num_prompts)}

    return run
