"""The conversations of a run in MLflow: traces of some of each stage, and a table of each model's answers."""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

from stillhouse.chat.content import text_of
from stillhouse.dataset.totals import num_given, totals_of
from stillhouse.report.conversation import VERDICTS, comparison, cut, question
from stillhouse.store.records import read_metadata_rows, read_trajectories
from stillhouse.tracking.traces import trace_of
from stillhouse.types import Artifact, JsonObject, PromptMetadata, Trajectory
from stillhouse.verification import examine_trajectory
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run
from tasks.run.stage import EVALUATION_OF
from tasks.sampling import TRAJECTORIES_FILE

EVALUATION_TABLES: Final = "evaluation/{}.json"
"""By model, the same in every run: MLflow lays those of several runs side by side, by their first column, and shows the
second."""
_MAX_ROWS: Final = 1000
"""Rows of a model in the table, which MLflow's page reads whole."""
_MAX_CHARS: Final = 2000
"""Of a text in the table."""


def log_conversations(run: Run) -> None:
    """Send what models answered to MLflow; what an earlier attempt of this run has sent is replaced."""
    num_traces = run.config.tracking.traces
    for stage, result in run.results.items() if run.config.tracking.enabled else ():
        if stage.startswith(EVALUATION_OF):
            model = stage.removeprefix(EVALUATION_OF)
            read = _read([result], run.results["prompts"].held_out_metadata, _MAX_ROWS)
            rows = [_row(trajectory, metadata) for trajectory, metadata in read]
            run.record.log_table(rows, EVALUATION_TABLES.format(model), whole=True)
        elif isinstance(result, Rollouts):
            model = "teacher" if stage == "rollouts" else "student"
            read = _read(result.shards, run.results["prompts"].train_metadata, num_traces)
        else:
            continue
        traces = [_trace(stage, model, run, trajectory, metadata) for trajectory, metadata in read[:num_traces]]
        if traces:
            run.record.send("traces", {"traces": traces})


def _read(shards: Sequence[Artifact], metadata: Artifact, most: int) -> list[tuple[Trajectory, PromptMetadata | None]]:
    """Return the first trajectories, which are of the same prompts in every run, with the metadata of their prompts."""
    files = (read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE) for shard in shards)
    trajectories = list(islice(chain.from_iterable(files), most))
    prompts = {trajectory.prompt_id for trajectory in trajectories}
    known = {row.prompt_id: row for row in read_metadata_rows(metadata_file(metadata)) if row.prompt_id in prompts}
    return [(trajectory, known.get(trajectory.prompt_id)) for trajectory in trajectories]


def _row(trajectory: Trajectory, metadata: PromptMetadata | None) -> JsonObject:
    totals = totals_of(trajectory)
    return {
        "question": question(trajectory.messages, _MAX_CHARS),
        "answer": cut(_answer(trajectory), _MAX_CHARS),
        "expected": metadata and cut(metadata.expected_answer or "", _MAX_CHARS),
        "verdict": VERDICTS[examine_trajectory(trajectory, metadata).verified],
        "stop_reason": trajectory.stop_reason,
        "turns": len(trajectory.turns),
        "tokens": totals.completion_tokens,
        "cost_usd": totals.cost_usd,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
    }


def _trace(stage: str, model: str, run: Run, trajectory: Trajectory, metadata: PromptMetadata | None) -> JsonObject:
    verdict = examine_trajectory(trajectory, metadata)
    expected = metadata and metadata.expected_answer
    labels = {"stage": stage, "model": model, "prompt_id": trajectory.prompt_id}
    given = num_given(trajectory.messages, len(trajectory.turns))
    return {
        **trace_of(trajectory, given, run.started_at.timestamp(), labels),
        "question": question(trajectory.messages, _MAX_CHARS),
        "answer": _answer(trajectory),
        "verdict": VERDICTS[verdict.verified],
        "why": comparison({**verdict.columns, "expected_answer": expected}),
        "expected": expected,
    }


def _answer(trajectory: Trajectory) -> str:
    return text_of(trajectory.messages[-1]) if trajectory.turns else ""
