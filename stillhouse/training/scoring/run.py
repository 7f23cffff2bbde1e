"""Scores the rows that SFT will train on, and writes the scores as one file of a ledger."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from transformers import AutoConfig

from stillhouse.chat.refs import NO_CODE, adapter_base, resolve_model
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inference.scoring.segments import SEGMENT, SegmentWriter
from stillhouse.progress.state import Progress
from stillhouse.training.job import TrainJob
from stillhouse.training.ranks import Ranks
from stillhouse.training.scoring.teacher import Score, scoring_teacher
from stillhouse.training.sft.render import Rendering, sample_length
from stillhouse.training.sft.sources import all_sources
from stillhouse.training.sft.tokens import Samples, load_data
from stillhouse.types import JsonObject

SCORES_FILE: Final = f"scores.{SEGMENT}"
_ROWS_AT_ONCE: Final = 256
"""Handed to the teacher together: enough to fill the requests that a server takes at once."""


def score_rows(job: TrainJob, ranks: Ranks, progress: Progress) -> JsonObject:
    """Scores every row of the job's dataset and sources, writes the scores to `job.output_dir`, and returns facts.

    Raises:
        StillhouseError: of the kinds that `load_data` and `scoring_teacher` name.
    """
    sft = job.sft
    assert sft is not None
    progress.update(job.method, 0, None, doing="reading rows")
    tokenizer = load_tokenizer(job.student_ref, job.student.chat_template_kwargs)
    data = load_data(
        all_sources(job.dataset_folder, sft),
        tokenizer,
        Rendering.of(sft, sample_length(job.student.max_length, _num_positions(job.student_ref))),
        work_dir=job.work_dir,
        num_processes=job.runtime.label_processes,
        ranks=ranks,
    )
    total = len(data.train) + len(data.validation)
    sums = _Sums()

    def say(text: str | None) -> None:
        progress.update(job.method, sums.rows, total, doing=text or "scoring")

    progress.update(job.method, 0, total, doing="loading the teacher")
    job.output_dir.mkdir(parents=True, exist_ok=True)
    with scoring_teacher(job, tokenizer, ranks.device, say) as score:
        say(None)
        writer = SegmentWriter(job.output_dir / SCORES_FILE)
        for samples in (data.train, data.validation):
            _write(samples, score, writer, sft.top_k, sums, say)
        writer.close()
    return sums.facts()


class _Sums:
    """What is counted of the scores."""

    def __init__(self) -> None:
        self.rows = self.tokens = 0
        self._nll = self._tail = 0.0

    def add(self, scores: SequenceScores) -> None:
        self.rows += 1
        self.tokens += len(scores.logprobs)
        self._nll -= math.fsum(scores.logprobs)
        if scores.top is not None:
            self._tail += float(np.exp(scores.top.log_tail_N.astype(np.float64)).sum())

    def facts(self) -> JsonObject:
        """How surprised the teacher is in nats a token, and the mean mass of the tokens that are not compared."""
        tokens = max(1, self.tokens)
        means = {"teacher_nll": self._nll / tokens, "soft_targets_tail": self._tail / tokens}
        return {"rows": self.rows, "scored_tokens": self.tokens, **means}


def _write(
    samples: Samples, score: Score, writer: SegmentWriter, top_k: int, sums: _Sums, say: Callable[[str | None], None]
) -> None:
    """A batch for each row, so that a training reads no more than it needs."""
    for first in range(0, len(samples), _ROWS_AT_ONCE):
        rows = samples[first : first + _ROWS_AT_ONCE]
        for row, scores in zip(rows, score(rows), strict=True):
            writer.append({ScoreLedger.key(row): scores}, top_k)
            sums.add(scores)
        say(None)


def _num_positions(ref: str) -> int | None:
    """As `Student.max_context`, without loading the model."""
    path = resolve_model(ref)
    config = AutoConfig.from_pretrained(resolve_model(adapter_base(Path(path)) or path), **NO_CODE)
    return getattr(config.get_text_config(), "max_position_embeddings", None)
