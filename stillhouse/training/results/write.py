"""Completes a student's folder: its record, metrics, model card and, on request, merged weights."""

import json
import logging
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Final

from transformers.utils.logging import disable_progress_bar

from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.dataset.report.page import CARD_FILE as DATASET_CARD
from stillhouse.embedded import embedded_path
from stillhouse.store.atomic import replaced_folder
from stillhouse.training.job import TrainJob
from stillhouse.training.monitoring.metrics import GENERATIONS_FILE, METRICS_FILE
from stillhouse.training.results.card import write_card
from stillhouse.training.results.merge import merge_into
from stillhouse.training.results.portable import make_portable
from stillhouse.training.results.record import MERGED_FOLDER, read_record, record_of
from stillhouse.training.results.sections import DATASET_CARD_FILE
from stillhouse.types import JsonObject, Message

logger = logging.getLogger(__name__)

_NUM_PROBES: Final = 4
"""Prompts of the embedded task, as the student's template renders them, on which merged weights are checked."""


def write_results(job: TrainJob, base: str, facts: JsonObject) -> None:
    """Complete `job.output_dir`, which holds the weights and tokenizer, by the facts of the trainer.

    `base` is the model ref of the weights below the adapter, or of those that training started from.

    Raises:
        InputError: data or an earlier student's record cannot be read.
        TrainingError: the merged weights differ from base and adapter.
        StoreError: no space or no permission.
    """
    folder = job.output_dir
    for name in (METRICS_FILE, GENERATIONS_FILE):
        _copy(job.work_dir / name, folder / name)
    if job.dataset_folder is not None:
        _copy(job.dataset_folder / DATASET_CARD, folder / DATASET_CARD_FILE)
    make_portable(folder)
    record_of(job, base, facts).write(folder)
    if job.student.merge:
        with replaced_folder(folder / MERGED_FOLDER) as work:
            fill_merged(folder, work)
    write_card(folder)


def fill_merged(folder: Path, output: Path) -> None:
    """Fill the empty folder `output` with the merged and checked weights of the adapter in `folder`."""
    # Its progress bars would interleave with the caller's output.
    disable_progress_bar()
    tokenizer = load_tokenizer(str(folder))
    lines = embedded_path("prompts.jsonl").read_text(encoding="utf-8").splitlines()[:_NUM_PROBES]
    conversations: list[list[Message]] = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    probes = [render(tokenizer, messages, None, add_generation_prompt=True) for messages in conversations]
    check = merge_into(folder, output, probes)
    tokenizer.save_pretrained(output)
    make_portable(output)
    for name in (METRICS_FILE, DATASET_CARD_FILE):
        _copy(folder / name, output / name)
    read_record(folder).model_copy(update={"merged": asdict(check)}).write(output)
    write_card(output)
    logger.info(
        "merged %s into %s weights: the logits differ by %.2g of their standard deviation, at most %.2g expected",
        *(folder, check.dtype, check.difference, check.tolerance),
    )


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copyfile(source, target)
