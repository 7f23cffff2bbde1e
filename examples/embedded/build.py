"""Build the embedded models: tokenizer, weights, prompts and the record of them.

    python -m examples.embedded.build [--out DIR] [--only tokenizer|teacher|student|prompts]

About fifteen minutes on one core. Seeds are fixed; the same library versions on the same processor give the same
bytes. `teacher` and `student` alone use the tokenizer that is already in DIR.
"""

import argparse
import itertools
import json
import logging
import platform
import random
import time
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from examples.embedded.corpus import draw_rows
from examples.embedded.pretrain import BATCH_SIZE, STUDENT, TEACHER, Recipe, new_model, pretrain
from examples.embedded.shop import CALCULATOR_SCHEMA, conversation, draw_prompts, draw_stories
from examples.embedded.tokenizer import MAX_POSITIONS, train_tokenizer
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import PromptsConfig, ToolsConfig
from stillhouse.embedded import embedded_path
from stillhouse.prompts.row import parse_row
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.store.fingerprint import file_sha256
from stillhouse.tools import Toolbox
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.verification import examine_trajectory

logger = logging.getLogger(__name__)

RECIPES: Final = (TEACHER, STUDENT)
NUM_PROMPTS: Final = 2_000
NUM_MEASURED: Final = 800
_SHIPPED: Final = embedded_path("teacher").parent
_TOKENIZER_SEED: Final = 11
_NUM_TOKENIZER_STORIES: Final = 4_000
_PROMPTS_SEED: Final = 12
_SAMPLING_SEED: Final = 13
_LIBRARIES: Final = ("torch", "transformers", "tokenizers", "safetensors")


def build_tokenizer(out: Path) -> None:
    """Train the tokenizer and put a copy, with the chat template, into each model's folder."""
    stories = draw_stories(random.Random(_TOKENIZER_SEED), reserved=False)
    chat_template = embedded_path("chat_template.jinja").read_text(encoding="utf-8")
    texts, _ = render_jinja_template(
        conversations=[conversation(story) for story in itertools.islice(stories, _NUM_TOKENIZER_STORIES)],
        tools=[CALCULATOR_SCHEMA],
        chat_template=chat_template,
    )
    tokenizer = train_tokenizer(texts, chat_template)
    for recipe in RECIPES:
        tokenizer.save_pretrained(out / recipe.name)


def build_prompts(out: Path) -> None:
    rows = draw_prompts(random.Random(_PROMPTS_SEED), NUM_PROMPTS)
    (out / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build_model(recipe: Recipe, out: Path) -> None:
    started = time.process_time()
    folder = out / recipe.name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = new_model(recipe, tokenizer)
    rows = draw_rows(tokenizer, recipe.corpus, recipe.num_rows, random.Random(recipe.seed))
    logger.info("%s: %d rows after %.0f CPU s", recipe.name, len(rows), time.process_time() - started)
    loss = pretrain(model, rows, recipe)
    cpu_seconds = time.process_time() - started
    save_model(model, folder)
    record = {
        "sha256": {"model.safetensors": file_sha256(folder / "model.safetensors")},
        "num_parameters": model.num_parameters(),
        "corpus": recipe.corpus,
        "num_rows": recipe.num_rows,
        "num_steps": recipe.num_steps,
        "batch_size": BATCH_SIZE,
        "seed": recipe.seed,
        "final_loss": round(loss, 5),
        "cpu_seconds": round(cpu_seconds),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
        **measure(folder, out / "prompts.jsonl"),
    }
    path = out / "models.json"
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(
        json.dumps(dict(sorted({**records, recipe.name: record}.items())), indent=2) + "\n", encoding="utf-8"
    )


def save_model(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Save the weights in float16, half the size, with a config that asks for float32 when they are loaded."""
    model.half().save_pretrained(folder)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config_path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, prompts_path: Path, num_prompts: int = NUM_MEASURED) -> dict[str, Any]:
    """Return the accuracy of a saved model on the first prompts, greedily and sampled at temperature 1."""
    rows = [json.loads(line) for line in prompts_path.read_text(encoding="utf-8").splitlines()[:num_prompts]]
    prompts, metadata = zip(*(parse_row(row, PromptsConfig()) for row in rows), strict=True)
    expected = {one.prompt_id: one for one in metadata}
    toolbox = Toolbox.from_config(ToolsConfig(builtin=("calculator",)))
    figures: dict[str, Any] = {"num_prompts": len(prompts)}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        settings = SamplingSettings(max_tokens=64, max_turns=5, temperature=temperature, seed=_SAMPLING_SEED)
        sampler = Sampler(load_tokenizer(str(folder)), toolbox, settings, MAX_POSITIONS)
        answered = sampler.sample(Generator(load_model(str(folder), device="cpu")), prompts, 0)
        verdicts = [examine_trajectory(one, expected[one.prompt_id]).verified is True for one in answered]
        figures[f"accuracy_{name}"] = fmean(verdicts)
    logger.info("%s: %s", folder.name, figures)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.embedded.build", description="Build embedded models.")
    parser.add_argument("--out", type=Path, default=_SHIPPED, help="default: stillhouse/embedded")
    parser.add_argument("--only", choices=("tokenizer", "prompts", *(recipe.name for recipe in RECIPES)))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)  # sums in one order, so that a rebuild gives the same bytes
    if options.only in (None, "tokenizer"):
        build_tokenizer(options.out)
    if options.only in (None, "prompts"):
        build_prompts(options.out)
    for recipe in RECIPES:
        if options.only in (None, recipe.name):
            build_model(recipe, options.out)


if __name__ == "__main__":
    main()
