"""What many write in an afternoon: `openai`, a semaphore, `gather`; rows appended, those that are there skipped.

`max_retries=8` where the package's default is 2: somebody who saw rows missing would raise it.
"""

import asyncio
import json
import time
from collections import Counter
from typing import Any, TextIO

import openai.resources.chat.completions  # noqa: F401  (imported by the first request, which is no cost of one)
from openai import AsyncOpenAI

from benchmarks.rollouts.sides.job import TOOL_SCHEMAS, Job, Question, load, mark_ready, row

_TOOL_TIMEOUT_S = 5.0


async def collect(job: Job) -> None:
    """Runs the job."""
    done: Counter[str] = Counter()
    if job.rows_file.exists():
        done.update(json.loads(line)["case"] for line in job.rows_file.read_text(encoding="utf-8").splitlines())
    semaphore = asyncio.Semaphore(job.concurrency)
    with job.rows_file.open("a", encoding="utf-8") as rows:
        async with AsyncOpenAI(base_url=job.url, api_key="none", max_retries=8) as client:
            requests = [
                _one(client, semaphore, job, question, rows)
                for question in job.questions()
                for _ in range(job.num_samples - done[question.case])
            ]
            await asyncio.gather(*requests, return_exceptions=True)


async def _one(client: AsyncOpenAI, semaphore: asyncio.Semaphore, job: Job, question: Question, rows: TextIO) -> None:
    messages: list[Any] = [{"role": "user", "content": question.text}]
    offered: dict[str, Any] = {"tools": TOOL_SCHEMAS} if job.tools else {}
    async with semaphore:
        while True:
            answer = await client.chat.completions.create(
                model="simulated-1", messages=messages, temperature=0.7, max_tokens=job.max_tokens, **offered
            )
            said = answer.choices[0].message
            if not said.tool_calls:
                break
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls:
                result = await _call(job, call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    if job.keep_rows:
        rows.write(row(question, said.content))
        rows.flush()


async def _call(job: Job, name: str, arguments: dict[str, Any]) -> str:
    if name == "look_up":
        pause = 60.0 if job.hangs(arguments["case"]) else job.tool_s
        try:
            await asyncio.wait_for(asyncio.sleep(pause), _TOOL_TIMEOUT_S)
        except TimeoutError:
            return "timed out"
    else:
        await asyncio.to_thread(time.sleep, job.tool_s)
    return f"{arguments['case']} turn {arguments['turn']}"


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    asyncio.run(collect(job))
