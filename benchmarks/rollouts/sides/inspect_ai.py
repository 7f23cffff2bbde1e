"""inspect_ai: `eval_set` with `generate`, adaptive connections, as its documentation has it; never a scorer."""

# The package is in an environment of its own.
# mypy: disable-error-code="import-not-found"

import asyncio
import time
from pathlib import Path

from inspect_ai import Task, eval_set
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log_samples
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import AdaptiveConcurrency

from benchmarks.rollouts.sides.job import Job, load, mark_ready, row


def collect(job: Job) -> None:
    """Runs the job."""
    samples = [Sample(input=text, id=case, metadata={"case": case}) for case, text in job.questions()]
    tools = [use_tools(look_up(job), look_up_slowly(job))] if job.tools else []
    task = Task(dataset=MemoryDataset(samples), solver=[*tools, generate()], name="casks", epochs=job.num_samples)
    config = GenerateConfig(
        adaptive_connections=AdaptiveConcurrency(max=max(job.concurrency, 20)),
        max_tokens=job.max_tokens,
        temperature=0.7,
    )
    model = get_model("openai/simulated-1", base_url=job.url, api_key="none", config=config, responses_api=False)
    _, logs = eval_set(
        task, log_dir=str(Path(job.folder) / "logs"), model=model, display="none", max_samples=job.concurrency
    )
    with job.rows_file.open("w", encoding="utf-8") as file:
        for log in logs:
            for sample in read_eval_log_samples(log.location, all_samples_required=False):
                file.write(row((str(sample.id), ""), sample.output.completion if sample.error is None else None))


@tool
def look_up(job: Job) -> Tool:
    """A tool."""

    async def execute(case: str, turn: int) -> str:
        """Looks a cask up.

        Args:
            case: the cask
            turn: the turn
        """
        try:
            await asyncio.wait_for(asyncio.sleep(60.0 if job.hangs(case) else job.tool_s), 5)
        except TimeoutError:
            return "timed out"
        return f"{case} turn {turn}"

    return execute


@tool
def look_up_slowly(job: Job) -> Tool:
    """A tool."""

    async def execute(case: str, turn: int) -> str:
        """Looks a cask up.

        Args:
            case: the cask
            turn: the turn
        """
        await asyncio.to_thread(time.sleep, job.tool_s)
        return f"{case} turn {turn}"

    return execute


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    collect(job)
