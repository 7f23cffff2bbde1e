"""Suites: each model on tasks of inspect_ai, through the server that evaluation uses as well."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stillhouse.config import TeacherConfig
from stillhouse.config.suites import SUITE_PREFIX, parse_suite
from stillhouse.errors import FailureBudgetExceeded
from stillhouse.evaluation.suites import SuiteLog, run_suite, source_of
from stillhouse.inference.endpoint import is_own_address
from stillhouse.store import digest
from stillhouse.store.records import read_jsonl, write_jsonl
from stillhouse.types import Artifact, JsonObject, Model
from stillhouse.verification.intervals import wilson_interval
from tasks.models import endpoint_of
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.progress import progress
from tasks.run.stage import Stage

SUITE = Stage(
    "suite",
    version=1,
    result="{score:.1%} ({score_low:.0%}-{score_high:.0%}) on {num_samples} samples",
    left_out={"num_failed": "failed"},
    when=lambda config: bool(config.evaluation.suites),
    foreseen=False,
    is_remote=True,
)
_SCORES_FILE: Final = "scores.jsonl"


def measure_on_suites(model: Model, run: Run) -> list[Artifact]:
    """Return a model's results on `evaluation.suites`; none of a teacher that somebody else serves, and may charge."""
    config, teacher = run.config, run.config.teacher if model.name == "teacher" else None
    address = None if teacher is None else teacher.base_url
    if address is not None and not is_own_address(address):
        return []
    settings = {"temperature": 0.0, "max_tokens": config.evaluation.max_tokens, "seed": config.evaluation.seed}
    return [
        call_stage_on(
            config.runtime.training_deployment if address is None else None,
            SUITE,
            run,
            label=f"{SUITE_PREFIX}{parse_suite(suite).name} of {model.name}",
            **{"model": model, "teacher": teacher, "suite": suite},
            setup={"settings": settings, "source": source_of(suite)},
        )
        for suite in config.evaluation.suites
    ]


@SUITE.made_by
def suite_task(
    model: Model, teacher: TeacherConfig | None, suite: str, setup: JsonObject, key: str, context: RunContext
) -> Artifact:
    """Run the suite, and store its log and the score of each sample."""
    name, runtime = parse_suite(suite).name, context.runtime

    async def run(folder: Path) -> SuiteLog:
        async with endpoint_of(model, teacher, runtime) as endpoint:
            progress().say(f"{SUITE_PREFIX}{name} of {model.name}")
            limits = {"max_connections": endpoint.capacity or runtime.concurrency, "max_retries": runtime.max_attempts}
            limits["attempt_timeout"] = math.ceil(runtime.request_timeout_s)
            request = {"folder": str(folder), "base_url": endpoint.base_url, "model": endpoint.model}
            return await run_suite(suite, {**request, "settings": {**setup["settings"], **limits}}, endpoint.api_key)

    def fill(folder: Path) -> tuple[int, JsonObject]:
        scores, failures, facts = run_until_done(run(folder))
        num_failed, budget = len(failures), runtime.failure_budget
        if not scores or num_failed > budget * (len(scores) + num_failed):
            reason = (failures or ["the task has no samples"])[0]
            raise FailureBudgetExceeded(
                f"{suite}: {num_failed} of {len(scores) + num_failed} samples have no score, more than the runtime."
                f"failure_budget of {budget:.0%}. The first: {reason}. Mend the cause and run the same command again"
            )
        write_jsonl(folder / _SCORES_FILE, [{"id": sample, "score": score} for sample, score in scores.items()])
        score = math.fsum(scores.values()) / len(scores)
        low, high = wilson_interval(score, len(scores))
        figures = {"score": score, "score_low": low, "score_high": high, "num_samples": len(scores)}
        return len(scores), {"suite": name, **figures, "num_failed": num_failed, **facts, **setup}

    return context.store.write(SUITE.name, digest(key), fill)


def suite_scores(results: Sequence[Artifact]) -> dict[str, dict[str, float]]:
    """Return a model's scores by figure and sample."""
    files = {SUITE_PREFIX + result.facts["suite"]: Path(result.uri) / _SCORES_FILE for result in results}
    return {figure: {row["id"]: row["score"] for row in read_jsonl(file)} for figure, file in files.items()}
