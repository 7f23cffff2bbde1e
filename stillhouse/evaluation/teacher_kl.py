"""The reverse KL to the teacher on the tokens that a model samples itself."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from stillhouse import errors
from stillhouse.config import RuntimeConfig
from stillhouse.errors import StillhouseError
from stillhouse.evaluation.log_ratio import ScoredSpans, ServedBy
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.types import Trajectory, Turn


def teacher_kl(
    trajectories: Iterable[Trajectory], teacher: str | ServedBy, runtime: RuntimeConfig, *, temperature: float | None
) -> float | None:
    """Return the mean over sampled tokens of student minus teacher log-probability, in nats per token.

        teacher_kl = mean_t [ log p_student(y_t | y_<t) - log p_teacher(y_t | y_<t) ],   y_t sampled from p_student

    An unbiased estimate of the mean per-token reverse KL along the student's own trajectories, so only for tokens
    sampled at temperature 1 from the whole distribution: None at any other temperature, when a turn carries no token
    ids or sampling log-probabilities, or when nothing was sampled. `teacher` is the ref of a local model, or one behind
    a server; what the ledger of its scores holds is not scored again.

    Raises:
        StillhouseError: as `mean_log_ratio`, or the process that scores was killed.
    """
    if temperature != 1.0:
        return None
    spans: list[ScoredSpans] = []
    for trajectory in trajectories:
        if not all(_is_recorded(turn) for turn in trajectory.turns):
            return None
        spans += (span for span in merge_turns(trajectory.turns) if span.sampling_logprobs)
    if not spans:
        return None
    return _score_apart(spans, teacher, runtime)


def _score_apart(spans: Sequence[ScoredSpans], teacher: str | ServedBy, runtime: RuntimeConfig) -> float:
    """Return `mean_log_ratio` of a process of its own, whose end frees the teacher's memory for what is loaded next."""
    with tempfile.TemporaryDirectory(prefix="stillhouse-scoring-") as folder:
        job, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        reader = teacher if isinstance(teacher, str) else teacher.model_dump(mode="json")
        settings = runtime.model_dump(mode="json")
        job.write_bytes(orjson.dumps({"spans": spans, "teacher": reader, "runtime": settings}))
        arguments, variables = [str(job), str(answer)], runtime.thread_variables
        with GuardedProcess("stillhouse.evaluation.log_ratio", arguments, variables, needs_torch=True) as process:
            process.lines.read()
            code = process.wait()
        if not answer.exists():
            name = teacher if isinstance(teacher, str) else teacher.teacher.name
            raise StillhouseError(
                f"scoring with teacher {name!r} ended with exit code {code} and no result; see what it printed, "
                "and run the same command again: the sampled answers are kept"
            )
        result = orjson.loads(answer.read_bytes())
    if "error" in result:
        raise getattr(errors, result["kind"])(result["error"])
    mean: float = result["mean"]
    return mean


def merge_turns(turns: Sequence[Turn]) -> list[ScoredSpans]:
    """Return the fewest sequences that hold each turn's completion after exactly its own prompt.

    A turn whose prompt begins with the sequence so far continues it; any other starts a new span.
    """
    merged: list[ScoredSpans] = []
    for turn in turns:
        assert turn.prompt_ids is not None
        assert turn.completion_ids is not None
        assert turn.sampling_logprobs is not None
        current = merged[-1] if merged else None
        if current is None or turn.prompt_ids[: len(current.token_ids)] != current.token_ids:
            current = ScoredSpans()
            merged.append(current)
        read = turn.prompt_ids[len(current.token_ids) :]
        current.token_ids += [*read, *turn.completion_ids]
        current.loss_mask += [False] * len(read) + [True] * len(turn.completion_ids)
        current.sampling_logprobs += turn.sampling_logprobs
    return merged


def _is_recorded(turn: Turn) -> bool:
    ids, logprobs = turn.completion_ids, turn.sampling_logprobs
    return bool(turn.prompt_ids) and ids is not None and logprobs is not None and len(ids) == len(logprobs)
