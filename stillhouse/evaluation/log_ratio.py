"""How much likelier sampled tokens were to the student than they are to its teacher, computed in a process of its own.

`python -m stillhouse.evaluation.log_ratio JOB ANSWER` reads the spans, the teacher and the runtime from one JSON file,
and writes the mean or what is wrong to another.
"""

import math
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict

from stillhouse.config import BudgetConfig, OnPolicyTeacher, RuntimeConfig
from stillhouse.dataset.local_scores import LocalScorer
from stillhouse.errors import StillhouseError
from stillhouse.inference.scoring.api import TokenSequence
from stillhouse.processes.exit import without_teardown
from stillhouse.types import JsonObject


@dataclass(slots=True)
class ScoredSpans:
    """A sequence that the teacher reads, and which of its tokens were sampled."""

    token_ids: list[int]
    positions: list[int] = field(default_factory=list)
    """Places of the sampled tokens in `token_ids`."""
    sampling_logprobs: list[float] = field(default_factory=list)
    """One for each of `positions`."""

    @property
    def loss_mask(self) -> list[bool]:
        """True at the sampled tokens."""
        sampled = set(self.positions)
        return [place in sampled for place in range(len(self.token_ids))]


class ServedBy(BaseModel):
    """A teacher behind a server that reads a student's tokens."""

    model_config = ConfigDict(frozen=True)

    teacher: OnPolicyTeacher
    student_ref: str
    """The model whose tokenizer spells the tokens."""
    budget: BudgetConfig
    """Limits the spending."""


class Scorer(Protocol):
    """Scores tokens."""

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Log-probabilities of the scored tokens of each sequence, in nats."""

    def close(self) -> None:
        """Frees what scores."""


def mean_log_ratio(spans: Sequence[ScoredSpans], teacher: Scorer) -> float:
    """Mean of student minus teacher log-probability over all sampled positions, of which there must be some.

    Raises:
        StillhouseError: the teacher cannot score.
    """
    differences = [
        sampled - scored
        for span, logprobs in zip(spans, teacher.logprobs(spans), strict=True)
        for sampled, scored in zip(span.sampling_logprobs, logprobs, strict=True)
    ]
    return math.fsum(differences) / len(differences)


def _scorer(teacher: str | JsonObject, runtime: RuntimeConfig) -> Scorer:
    """The local model of a ref, or what asks a server."""
    if isinstance(teacher, str):
        return LocalScorer(teacher, runtime)
    # It imports transformers, which the flow's process does without.
    from stillhouse.evaluation.served_scores import ServedScorer

    return ServedScorer(ServedBy.model_validate(teacher), runtime)


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        with closing(_scorer(job["teacher"], RuntimeConfig.model_validate(job["runtime"]))) as teacher:
            return {"mean": mean_log_ratio([ScoredSpans(**span) for span in job["spans"]], teacher)}
    except StillhouseError as error:
        return {"error": str(error), "kind": type(error).__name__}


def main(job: Path, answer: Path) -> None:
    """Reads the job and writes the answer."""
    answer.write_bytes(orjson.dumps(_answer(orjson.loads(job.read_bytes()))))


if __name__ == "__main__":
    with without_teardown():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
