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

_MAX_ROWS: Final = 1000
_MAX_CHARS: Final = 2000
"""Of a model's table, which MLflow's page reads whole, and of a text in it."""


def log_conversations(run: Run) -> None:
    """Send what models answered to MLflow; what an earlier attempt of this run has sent is replaced."""
    results, num_traces = run.results if run.config.tracking.enabled else {}, run.config.tracking.traces
    for stage, result in results.items():
        if stage.startswith(EVALUATION_OF):
            model = stage.removeprefix(EVALUATION_OF)
            read = sampled([result], results["prompts"].held_out_metadata, _MAX_ROWS)
            rows = [_row(trajectory, metadata) for trajectory, metadata in read]
            run.record.log_table(rows, f"evaluation/{model}.json", whole=True)
        elif isinstance(result, Rollouts):
            model = "teacher" if stage == "rollouts" else "student"
            read = sampled(result.shards, results["prompts"].train_metadata, num_traces)
            rows = [_row(trajectory, metadata) for trajectory, metadata in read]
        else:
            continue
        labels, start = {"stage": stage, "model": model}, run.started_at.timestamp()
        for (trajectory, _), row in zip(read[:num_traces], rows, strict=False):
            given = num_given(trajectory.messages, len(trajectory.turns))
            run.record.send("trace", {**row, **trace_of(trajectory, given, start, labels)})


def sampled(
    shards: Sequence[Artifact], metadata: Artifact, most: int
) -> list[tuple[Trajectory, PromptMetadata | None]]:
    """Return the first trajectories, which are of the same prompts in every run, with the metadata of their prompts."""
    files = (read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE) for shard in shards)
    trajectories = list(islice(chain.from_iterable(files), most))
    prompts = {trajectory.prompt_id for trajectory in trajectories}
    known = {row.prompt_id: row for row in read_metadata_rows(metadata_file(metadata)) if row.prompt_id in prompts}
    return [(trajectory, known.get(trajectory.prompt_id)) for trajectory in trajectories]


def _row(trajectory: Trajectory, metadata: PromptMetadata | None) -> JsonObject:
    """Return an answer; MLflow lays tables of one name side by side by their first column, and shows the second."""
    verdict, totals = examine_trajectory(trajectory, metadata), totals_of(trajectory)
    expected = metadata and metadata.expected_answer
    answer = text_of(trajectory.messages[-1]) if trajectory.turns else ""
    figures = {"turns": len(trajectory.turns), "tokens": totals.completion_tokens, "cost_usd": totals.cost_usd}
    return {
        "question": question(trajectory.messages, _MAX_CHARS),
        "answer": cut(answer, _MAX_CHARS),
        "expected": expected and cut(expected, _MAX_CHARS),
        "verdict": VERDICTS[verdict.verified],
        "why": comparison({**verdict.columns, "expected_answer": expected}),
        **figures,
        **{name: getattr(trajectory, name) for name in ("stop_reason", "prompt_id", "sample_index")},
    }
