"""Computes, in a process of its own, how much likelier sampled tokens were to the student than to its teacher.

`python -m stillhouse.evaluation.log_ratio JOB ANSWER` reads the spans, the teacher and the runtime from one JSON file,
and writes the mean or what is wrong to another.
"""

import math
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict

from stillhouse.chat.refs import model_identity
from stillhouse.config import BudgetConfig, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import InputError, StillhouseError
from stillhouse.inference.budget import Budget
from stillhouse.inference.scoring.ledger import open_ledger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.processes.exit import without_teardown
from stillhouse.store import ArtifactStore
from stillhouse.types import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_AT_ONCE: Final = 256
"""Sequences that are scored before what is known of them is written down."""


@dataclass(slots=True)
class ScoredSpans:
    """A sequence that the teacher reads, and which of its tokens were sampled."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    """True at the sampled tokens."""
    sampling_logprobs: list[float] = field(default_factory=list)
    """One for each sampled token."""


class ServedBy(BaseModel):
    """A teacher behind a server that reads a student's tokens."""

    model_config = ConfigDict(frozen=True)

    teacher: OnPolicyTeacher
    student_ref: str
    """The model whose tokenizer spells the tokens."""
    budget: BudgetConfig
    """Limits the spending."""


def mean_log_ratio(spans: Sequence[ScoredSpans], teacher: str | ServedBy, runtime: RuntimeConfig) -> float:
    """Return the mean of student minus teacher log-probability over all sampled positions, of which there must be some.

    Raises:
        InputError: a token id lies outside the local teacher's vocabulary.
        ConfigError: the teacher cannot be loaded.
        EndpointError: its server does not answer, or gives no scores.
        BudgetReached: they would cost more than the budget allows.
        StoreError: the ledger cannot be read or written.
    """
    score = _local_scores if isinstance(teacher, str) else _served_scores
    differences = [
        sampled - scored
        for span, logprobs in zip(spans, score(spans, teacher, runtime), strict=True)  # type: ignore[arg-type]
        for sampled, scored in zip(span.sampling_logprobs, logprobs, strict=True)
    ]
    return math.fsum(differences) / len(differences)


# The flow's process imports this module, and does without torch and transformers.
def _local_scores(spans: Sequence[ScoredSpans], ref: str, runtime: RuntimeConfig) -> list[list[float]]:
    """Return log-probabilities of each span's sampled tokens; the model is loaded if the ledger lacks any."""
    import torch

    from stillhouse.serving.models import load_model
    from stillhouse.serving.score import score_tokens

    @cache
    def loaded() -> "PreTrainedModel":
        return load_model(ref, device=runtime.device, dtype="auto", num_threads=runtime.num_threads)

    def score(part: Sequence[ScoredSpans]) -> list[SequenceScores]:
        num_known = loaded().config.get_text_config().vocab_size
        largest = max(max(span.token_ids) for span in part)
        if largest >= num_known:
            raise InputError(
                f"token id {largest} was sampled, and teacher {ref!r} knows {num_known} tokens; expected student and "
                "teacher to share a tokenizer. Name such a teacher in on_policy.teacher"
            )
        logprobs = score_tokens(loaded(), [span.token_ids for span in part])
        return [SequenceScores(list(compress(one, s.loss_mask))) for s, one in zip(part, logprobs, strict=True)]

    device = runtime.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # Scores depend on the weights and on where they are computed, which decides their type. The identity tells the
    # weights, so that no probe has to.
    known_by = {"kind": "local", "model": model_identity(ref), "dtype": "auto", "device": device}
    with open_ledger(ArtifactStore(runtime.store, runtime.scratch), known_by, probe=[]) as ledger:
        firsts = range(0, len(spans), _AT_ONCE)
        parts = (ledger.completed(spans[first : first + _AT_ONCE], score) for first in firsts)
        return [scores.logprobs for part in parts for scores in part]


def _served_scores(spans: Sequence[ScoredSpans], served: ServedBy, runtime: RuntimeConfig) -> list[list[float]]:
    """Return the same of a server, after the checks that a training makes before it trusts one."""
    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.training.on_policy.teachers.served.connect import connect

    teacher = connect(
        # Most probable tokens are not compared here.
        served.teacher.model_copy(update={"top_k": None}),
        kl_coef=1.0,
        temperature=1.0,
        tokenizer=load_tokenizer(served.student_ref),
        alignment=None,
        runtime=runtime,
        budget=Budget(served.budget, None),
    )
    with closing(teacher):
        scores = teacher.start([Sample(span.token_ids, span.loss_mask, "") for span in spans]).result()
    return [one.logprobs for one in scores]


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    teacher = job["teacher"] if isinstance(job["teacher"], str) else ServedBy.model_validate(job["teacher"])
    spans = [ScoredSpans(**span) for span in job["spans"]]
    try:
        return {"mean": mean_log_ratio(spans, teacher, RuntimeConfig.model_validate(job["runtime"]))}
    except StillhouseError as error:
        return {"error": str(error), "kind": type(error).__name__}


def main(job: Path, answer: Path) -> None:
    """Read the job and write the answer."""
    answer.write_bytes(orjson.dumps(_answer(orjson.loads(job.read_bytes()))))


if __name__ == "__main__":
    with without_teardown():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
