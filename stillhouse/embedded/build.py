"""Builds everything in this folder that is not source: tokenizer, weights, prompts and the record of them.

    python -m stillhouse.embedded.build [--out DIR] [--only tokenizer|teacher|student|prompts]

About fifteen minutes on one core. Seeds are fixed; the same library versions on the same processor give the same
bytes. `teacher` and `student` alone use the tokenizer that is already in DIR.
"""

import argparse
import hashlib
import itertools
import json
import logging
import platform
import random
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from stillhouse.embedded.corpus import draw_rows
from stillhouse.embedded.pretrain import BATCH_SIZE, STUDENT, TEACHER, Recipe, new_model, pretrain
from stillhouse.embedded.shop import CALCULATOR_SCHEMA, conversation, draw_prompts, draw_stories
from stillhouse.embedded.solve import accuracy
from stillhouse.embedded.tokenizer import train_tokenizer

logger = logging.getLogger(__name__)

RECIPES: Final = (TEACHER, STUDENT)
NUM_PROMPTS: Final = 2_000
NUM_MEASURED: Final = 800
_HERE: Final = Path(__file__).parent
_TOKENIZER_SEED: Final = 11
_NUM_TOKENIZER_STORIES: Final = 4_000
_PROMPTS_SEED: Final = 12
_SAMPLING_SEED: Final = 13
_LIBRARIES: Final = ("torch", "transformers", "tokenizers", "safetensors")


def build_tokenizer(out: Path) -> None:
    """Trains the tokenizer and puts a copy, with the chat template, into each model's folder."""
    stories = draw_stories(random.Random(_TOKENIZER_SEED), reserved=False)
    chat_template = (_HERE / "chat_template.jinja").read_text(encoding="utf-8")
    texts, _ = render_jinja_template(
        conversations=[conversation(story) for story in itertools.islice(stories, _NUM_TOKENIZER_STORIES)],
        tools=[CALCULATOR_SCHEMA],
        chat_template=chat_template,
    )
    tokenizer = train_tokenizer(texts, chat_template)
    for recipe in RECIPES:
        tokenizer.save_pretrained(out / recipe.name)


def build_prompts(out: Path) -> None:
    """Writes `prompts.jsonl`, one row a line."""
    rows = draw_prompts(random.Random(_PROMPTS_SEED), NUM_PROMPTS)
    (out / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build_model(recipe: Recipe, out: Path) -> None:
    """Trains, saves and measures one model, and enters it into `models.json` and `MODELS.md`."""
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
        "sha256": {"model.safetensors": sha256_of(folder / "model.safetensors")},
        "num_parameters": model.num_parameters(),
        "corpus": recipe.corpus,
        "num_rows": recipe.num_rows,
        "num_steps": recipe.num_steps,
        "batch_size": BATCH_SIZE,
        "seed": recipe.seed,
        "final_loss": round(loss, 5),
        "cpu_seconds": round(cpu_seconds),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
        **measure(folder, tokenizer, out / "prompts.jsonl"),
    }
    _write_record(recipe.name, record, out)


def save_model(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Saves the weights in float16, half the size, with a config that asks for float32 when they are loaded."""
    model.half().save_pretrained(folder)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config_path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, tokenizer: PreTrainedTokenizerFast, prompts_path: Path) -> dict[str, Any]:
    """Accuracy of the saved model on the first prompts, greedily and sampled at temperature 1."""
    lines = prompts_path.read_text(encoding="utf-8").splitlines()[:NUM_MEASURED]
    prompts = [json.loads(line) for line in lines]
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(_SAMPLING_SEED)
    figures = {
        "num_prompts": len(prompts),
        "accuracy_greedy": accuracy(model, tokenizer, prompts, temperature=0.0),
        "accuracy_sampled": accuracy(model, tokenizer, prompts, temperature=1.0),
    }
    logger.info("%s: %s", folder.name, figures)
    return figures


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_record(name: str, record: dict[str, Any], out: Path) -> None:
    path = out / "models.json"
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    records = dict(sorted((records | {name: record}).items()))
    path.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    head = (
        "# The embedded models\n\n"
        "Written by `python -m stillhouse.embedded.build`; the same figures, for programs, are in `models.json`.\n"
        "Qwen3 architecture, hidden size 64, two heads, one key-value head, tied embeddings, float16 on disk.\n"
        "Accuracy is measured on all of `prompts.jsonl`, which no training corpus contains, with the tool run.\n"
    )
    (out / "MODELS.md").write_text(head + "".join(_section(*item) for item in records.items()), encoding="utf-8")


def _section(name: str, record: dict[str, Any]) -> str:
    versions = ", ".join(f"{library} {number}" for library, number in record["versions"].items())
    return (
        f"\n## {name}\n\n"
        f"- {record['num_parameters']:,} parameters; SHA-256 of model.safetensors: "
        f"`{record['sha256']['model.safetensors']}`\n"
        f"- {record['num_steps']:,} steps of {record['batch_size']} conversations from {record['num_rows']:,} of the "
        f"{record['corpus']} corpus, seed {record['seed']}; final loss {record['final_loss']} nats a token; "
        f"{record['cpu_seconds']} CPU s\n"
        f"- accuracy on {record['num_prompts']} prompts: {record['accuracy_greedy']:.3f} greedy, "
        f"{record['accuracy_sampled']:.3f} sampled at temperature 1\n"
        f"- {versions}\n"
    )


def main() -> None:
    """Parses the command line and builds what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m stillhouse.embedded.build", description="Build embedded models.")
    parser.add_argument("--out", type=Path, default=_HERE, help="folder to write into (default: this package)")
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
