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
from typing import Any

import orjson

from stillhouse.config import RuntimeConfig
from stillhouse.dataset.local_scores import LocalScorer
from stillhouse.errors import ConfigError, InputError, StoreError
from stillhouse.processes.exit import without_teardown


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


def mean_log_ratio(spans: Sequence[ScoredSpans], teacher: LocalScorer) -> float:
    """Mean of student minus teacher log-probability over all sampled positions; there must be some.

    Raises:
        InputError: a token id lies outside the teacher's vocabulary.
    """
    differences = [
        sampled - scored
        for span, logprobs in zip(spans, teacher.logprobs(spans), strict=True)
        for sampled, scored in zip(span.sampling_logprobs, logprobs, strict=True)
    ]
    return math.fsum(differences) / len(differences)


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        with closing(LocalScorer(job["teacher"], RuntimeConfig.model_validate(job["runtime"]))) as teacher:
            return {"mean": mean_log_ratio([ScoredSpans(**span) for span in job["spans"]], teacher)}
    except (ConfigError, InputError, StoreError) as error:
        return {"error": str(error), "kind": type(error).__name__}


def main(job: Path, answer: Path) -> None:
    """Reads the job and writes the answer."""
    answer.write_bytes(orjson.dumps(_answer(orjson.loads(job.read_bytes()))))


if __name__ == "__main__":
    with without_teardown():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
