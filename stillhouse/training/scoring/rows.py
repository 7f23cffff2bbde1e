"""Scores the rows that SFT will train on, and writes the scores as one file of a ledger."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer, num_positions
from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inference.scoring.segments import SEGMENT, SegmentWriter
from stillhouse.progress.state import Progress
from stillhouse.training.job import TrainJob
from stillhouse.training.ranks import Ranks
from stillhouse.training.scoring.recorded import RecordedScores, num_hard
from stillhouse.training.scoring.teacher import Score, scoring_teacher
from stillhouse.training.sft.render import Rendering, sample_length
from stillhouse.training.sft.sources import all_sources
from stillhouse.training.sft.tokens import Samples, load_data
from stillhouse.types import JsonObject, Sample

SCORES_FILE: Final = f"scores.{SEGMENT}"
_ROWS_AT_ONCE: Final = 256
"""Handed to the teacher together: enough to fill the requests that a server takes at once."""


logger = logging.getLogger(__name__)


def score_rows(job: TrainJob, ranks: Ranks, progress: Progress) -> JsonObject:
    """Score every row of the job's dataset and sources, write the scores to `job.output_dir`, and return facts.

    What rows came with is taken first; the teacher scores the others.

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
        Rendering.of(sft, sample_length(job.student.max_length, num_positions(job.student_ref))),
        work_dir=job.work_dir,
        num_processes=job.runtime.num_threads,
        ranks=ranks,
    )
    total = len(data.train) + len(data.validation)
    job.output_dir.mkdir(parents=True, exist_ok=True)
    with closing(SegmentWriter(job.output_dir / SCORES_FILE)) as writer:
        output = _Output(writer, sft.top_k)

        def say(text: str | None) -> None:
            progress.update(job.method, output.rows, total, doing=text or "scoring")

        say("looking for what was recorded")
        # A teacher that is named is the one to learn from, whoever wrote the rows.
        named = sft.scoring_teacher(None)
        recorded = RecordedScores(tokenizer, sft.top_k, None if named is None else named.model)
        folders = [Path(source.path) for source in all_sources(job.dataset_folder, sft) if Path(source.path).is_dir()]
        # What was recorded was sampled at temperature 1.
        for folder in folders if sft.soft_temperature == 1.0 else ():
            for samples in (data.train, data.validation):
                for sample, scores in recorded.of_samples(folder, samples):
                    output.write_recorded(sample, scores)
        if output.rows < total:
            with _scores_of_others(job, recorded, tokenizer, ranks, output, say) as score:
                say(None)
                for samples in (data.train, data.validation):
                    output.write_missing(samples, score, say)
    return output.facts()


class _Output:
    """Writes scores, a batch for each row, so that a training reads no more than it needs, and counts them."""

    def __init__(self, writer: SegmentWriter, top_k: int) -> None:
        self._writer = writer
        self._top_k = top_k
        self._recorded: set[bytes] = set()
        self.rows = self.hard = self._num_recorded = self._tokens = 0
        self._nll = self._tail = 0.0

    def write_recorded(self, sample: Sample, scores: SequenceScores) -> None:
        self._recorded.add(ScoreLedger.key(sample))
        self._num_recorded += 1
        self._write(sample, scores)

    def write_missing(self, samples: Samples, score: Score, say: Callable[[str | None], None]) -> None:
        """Write the scores of all samples whose tokens no recorded ones are written of."""
        for first in range(0, len(samples), _ROWS_AT_ONCE):
            rows = samples[first : first + _ROWS_AT_ONCE]
            rows = [row for row in rows if ScoreLedger.key(row) not in self._recorded]
            for row, scores in zip(rows, score(rows) if rows else (), strict=True):
                self._write(row, scores)
            say(None)

    def facts(self) -> JsonObject:
        """Return counts, how surprised the teacher is in nats a token, and the mean mass of tokens not compared."""
        tokens = max(1, self._tokens)
        means = {"teacher_nll": self._nll / tokens, "soft_targets_tail": self._tail / tokens}
        counts = {"recorded_rows": self._num_recorded, "hard_rows": self.hard}
        taken = {name: count for name, count in counts.items() if count}
        return {"rows": self.rows, "scored_tokens": self._tokens, **taken, **means}

    def _write(self, sample: Sample, scores: SequenceScores) -> None:
        self._writer.append({ScoreLedger.key(sample): scores}, self._top_k)
        self.rows += 1
        self._nll -= math.fsum(scores.logprobs)
        self._tokens += len(scores.logprobs)
        if scores.top is not None:
            self._tokens -= num_hard(scores.top)
            self._tail += float(np.exp(scores.top.log_tail_N.astype(np.float64)).sum())


@contextmanager
def _scores_of_others(
    job: TrainJob,
    recorded: RecordedScores,
    tokenizer: PreTrainedTokenizerBase,
    ranks: Ranks,
    output: _Output,
    say: Callable[[str | None], None],
) -> Iterator[Score]:
    """Yield scores of samples that came with none: a teacher's, or hard targets where the teacher only samples."""
    assert job.sft is not None
    if job.sft.scoring_teacher(job.teacher_ref) is not None:
        say("loading the teacher")
        with scoring_teacher(job, tokenizer, ranks.device, say) as score:
            yield score
        return
    if not output.rows:
        raise TrainingError(
            "sft.loss is `kl`, no teacher scores the rows, and none of them came with what its teacher found most "
            "probable at the student's tokens. Set rollouts.record_top_k to sft.top_k or more, with a student of the "
            "teacher's vocabulary; or name a teacher in sft.teacher or sft.teachers, or take the loss `nll`"
        )

    def hard(samples: Sequence[Sample]) -> list[SequenceScores]:
        output.hard += len(samples)
        return [recorded.hard(sample) for sample in samples]

    yield hard
    logger.warning(
        "sft.loss `kl`: %d of %d samples learn hard targets alone: what was sampled for them was not recorded, or in "
        "other tokens than the student's",
        output.hard,
        output.rows,
    )
