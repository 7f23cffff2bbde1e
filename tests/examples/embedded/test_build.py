import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import stillhouse.embedded
from examples.embedded.build import NUM_MEASURED, NUM_PROMPTS, RECIPES, build_prompts, build_tokenizer, measure
from examples.embedded.shop import draw_stories
from stillhouse.embedded import embedded_path
from stillhouse.store.fingerprint import file_sha256

FOLDER = Path(stillhouse.embedded.__file__).parent
RECORDS = json.loads((FOLDER / "models.json").read_text(encoding="utf-8"))


def shipped_prompts() -> list[dict[str, Any]]:
    return [json.loads(line) for line in embedded_path("prompts.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_weights_are_those_that_were_measured(name: str):
    assert file_sha256(embedded_path(name) / "model.safetensors") == RECORDS[name]["sha256"]["model.safetensors"]


def test_models_and_tokenizers_take_less_than_two_megabytes():
    files = [path for name in ("teacher", "student") for path in embedded_path(name).iterdir()]
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_the_teacher_masters_the_task_and_the_student_has_room_to_learn_it():
    teacher, student = RECORDS["teacher"], RECORDS["student"]
    assert min(teacher["accuracy_greedy"], teacher["accuracy_sampled"]) >= 0.95
    assert min(student["accuracy_greedy"], student["accuracy_sampled"]) >= 0.35
    assert max(student["accuracy_greedy"], student["accuracy_sampled"]) <= 0.62
    assert teacher["num_prompts"] == student["num_prompts"] == NUM_MEASURED


def test_prompts_are_distinct_and_answered_by_a_number():
    rows = shipped_prompts()
    assert len({row["prompt"] for row in rows}) == len(rows) == NUM_PROMPTS
    for row in rows:
        assert set(row) == {"prompt", "metadata"}
        assert re.fullmatch(r"\d+", row["metadata"]["expected_answer"])
        assert row["metadata"]["tag"] in {"1-event", "2-events", "3-events"}


def test_prompts_are_in_no_training_corpus_start():
    prompts = {row["prompt"] for row in shipped_prompts()}
    for recipe in RECIPES:
        stories = draw_stories(random.Random(recipe.seed), reserved=False)
        assert not prompts & {story.text for story in itertools.islice(stories, 2000)}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_prompts_are_in_no_training_corpus_at_all(recipe: Any, tokenizer: PreTrainedTokenizerFast):
    from examples.embedded.corpus import draw_rows

    rows = draw_rows(tokenizer, recipe.corpus, recipe.num_rows, random.Random(recipe.seed))
    trained = set(tokenizer.batch_decode([row.ids for row in rows]))
    questions = {text.split("<|im_start|>user\n", 1)[1].split("<|im_end|>", 1)[0] for text in trained}
    assert not questions & {row["prompt"] for row in shipped_prompts()}


def test_building_again_gives_the_shipped_tokenizer_and_prompts(tmp_path: Path):
    build_tokenizer(tmp_path)
    build_prompts(tmp_path)
    for name in ("teacher/tokenizer.json", "student/tokenizer.json", "teacher/chat_template.jinja", "prompts.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_a_folder_loads_in_single_precision_with_its_own_tokenizer(name: str):
    model = AutoModelForCausalLM.from_pretrained(embedded_path(name))
    tokenizer = AutoTokenizer.from_pretrained(embedded_path(name))
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_the_teacher_solves_prompts():
    figures = measure(embedded_path("teacher"), embedded_path("prompts.jsonl"), num_prompts=20)
    assert figures["accuracy_greedy"] >= 0.95
    assert figures["accuracy_sampled"] >= 0.9
