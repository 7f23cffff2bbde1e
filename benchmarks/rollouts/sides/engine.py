"""Our engine: `RolloutCollector` with journal and rate control."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.rollouts.sides.job import Job, Question, load, mark_ready, row
from stillhouse.config import RolloutsConfig, RuntimeConfig

# The engine imports its clients when it first asks, which is no cost of a request.
from stillhouse.inference import Endpoint, Journal, http_client, openai_client  # noqa: F401
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.store import prompt_id
from stillhouse.tools import Tool, Toolbox, tool
from stillhouse.types import Message, Prompt, StopReason

_TOOL_TIMEOUT_S = 5.0
_HANGS_S = 60.0


async def collect(job: Job) -> None:
    """Runs the job."""
    cases: dict[str, str] = {}
    with Journal(Path(job.folder) / "journal.sqlite3") as journal, job.rows_file.open("w", encoding="utf-8") as rows:
        collection = RolloutCollector(
            EverySample(_prompts(job, cases), job.num_samples),
            endpoint=Endpoint(job.url, "simulated-1", "simulated-1", client=job.client),
            config=RolloutsConfig(max_tokens=job.max_tokens, num_samples=job.num_samples),
            toolbox=Toolbox(_tools(job) if job.tools else [], timeout_s=_TOOL_TIMEOUT_S),
            journal=journal,
            runtime=_runtime(job),
        )
        async for trajectory in collection:
            case = cases.pop(trajectory.prompt_id) if job.num_samples == 1 else cases[trajectory.prompt_id]
            if not job.keep_rows:
                continue
            answered = trajectory.stop_reason is not StopReason.ERROR
            content = trajectory.messages[-1].get("content") if answered else None
            rows.write(row((case, ""), str(content) if content else None))


def _runtime(job: Job) -> RuntimeConfig:
    runtime = RuntimeConfig(store=job.folder, max_concurrency=job.concurrency)
    return runtime if job.start is None else runtime.model_copy(update={"concurrency": job.start})


def _prompts(job: Job, cases: dict[str, str]) -> Iterator[Prompt]:
    for question in job.questions():
        prompt = _prompt(question)
        cases[prompt.id] = question.case
        yield prompt


def _prompt(question: Question) -> Prompt:
    messages: list[Message] = [{"role": "user", "content": question.text}]
    return Prompt(prompt_id(messages, None), messages)


def _tools(job: Job) -> list[Tool]:
    @tool
    async def look_up(case: str, turn: int) -> str:
        """Looks a cask up."""
        await asyncio.sleep(_HANGS_S if job.hangs(case) else job.tool_s)
        return f"{case} turn {turn}"

    @tool
    def look_up_slowly(case: str, turn: int) -> str:
        """Looks a cask up."""
        time.sleep(job.tool_s)
        return f"{case} turn {turn}"

    return [look_up, look_up_slowly]


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    uvloop.run(collect(job))
