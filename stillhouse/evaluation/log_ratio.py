"""How much likelier sampled tokens were to the student than they are to its teacher, computed in a process of its own.

`python -m stillhouse.evaluation.log_ratio JOB ANSWER` reads the spans, the teacher and how to load it from one JSON
file, and writes the mean or what is wrong to another.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from stillhouse.errors import ConfigError, InputError
from stillhouse.processes.exit import without_teardown

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHUNK_SEQUENCES: Final = 256


@dataclass(slots=True)
class ScoredSpans:
    """A sequence that the teacher reads, and which of its tokens were sampled."""

    token_ids: list[int]
    positions: list[int] = field(default_factory=list)
    """Places of the sampled tokens in `token_ids`."""
    sampling_logprobs: list[float] = field(default_factory=list)
    """One for each of `positions`."""


def mean_log_ratio(spans: Sequence[ScoredSpans], teacher: "PreTrainedModel", teacher_ref: str) -> float:
    """Mean of student minus teacher log-probability over all sampled positions; there must be some.

    Raises:
        InputError: a token id lies outside the teacher's vocabulary.
    """
    from stillhouse.serving.score import score_tokens

    num_known = teacher.config.get_text_config().vocab_size
    largest = max(max(span.token_ids) for span in spans)
    if largest >= num_known:
        raise InputError(
            f"token id {largest} was sampled, and teacher {teacher_ref!r} knows {num_known} tokens; expected student "
            "and teacher to share a tokenizer. Name such a teacher in on_policy.teacher"
        )
    differences: list[float] = []
    for first in range(0, len(spans), _CHUNK_SEQUENCES):
        chunk = spans[first : first + _CHUNK_SEQUENCES]
        scores = score_tokens(teacher, [span.token_ids for span in chunk])
        for span, teacher_logprobs in zip(chunk, scores, strict=True):
            differences += [
                sampled - teacher_logprobs[place]
                for place, sampled in zip(span.positions, span.sampling_logprobs, strict=True)
            ]
    return math.fsum(differences) / len(differences)


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    from stillhouse.serving.models import load_model

    try:
        teacher = load_model(job["teacher"], dtype="auto", **job["settings"])
        return {"mean": mean_log_ratio([ScoredSpans(**span) for span in job["spans"]], teacher, job["teacher"])}
    except (ConfigError, InputError) as error:
        return {"error": str(error), "kind": type(error).__name__}


def main(job: Path, answer: Path) -> None:
    """Reads the job and writes the answer."""
    answer.write_bytes(orjson.dumps(_answer(orjson.loads(job.read_bytes()))))


if __name__ == "__main__":
    with without_teardown():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
