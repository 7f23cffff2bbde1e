"""The loose script that the engine replaces, written anew from its description, its defects included.

Batches of so many prompts, each waiting for its slowest. After a 429 the batch is halved, for good, and everything from
its start on is sent again; at one prompt a batch a 429 loses the prompt. Any other error loses it as well. Rows are
appended; what is done is known by the prompt's text. Tools run in the event loop.
"""

import asyncio
import json
import time
from typing import Any

import httpx

from benchmarks.rollouts.sides.job import TOOL_SCHEMAS, Job, Question, load, mark_ready, row


class RateLimited(Exception):
    """A 429."""


async def collect(job: Job) -> None:
    """Runs the job."""
    done = set()
    if job.rows_file.exists():
        done = {json.loads(line)["case"] for line in job.rows_file.read_text(encoding="utf-8").splitlines()}
    remaining = [question for question in job.questions() if question.case not in done] * job.num_samples
    size, start = job.concurrency, 0
    async with httpx.AsyncClient(timeout=120) as client:
        while start < len(remaining):
            batch = remaining[start : start + size]
            results = await asyncio.gather(*(_one(client, job, question) for question in batch), return_exceptions=True)
            with job.rows_file.open("a", encoding="utf-8") as rows:
                for question, answer in zip(batch, results, strict=True):
                    if isinstance(answer, str) and job.keep_rows:
                        rows.write(row(question, answer))
            limited = [q for q, answer in zip(batch, results, strict=True) if isinstance(answer, RateLimited)]
            if limited and size > 1:
                remaining, start, size = remaining[start:] + limited, 0, max(1, size // 2)
                await asyncio.sleep(2)
            else:
                start += len(batch)


async def _one(client: httpx.AsyncClient, job: Job, question: Question) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    offered = {"tools": TOOL_SCHEMAS} if job.tools else {}
    while True:
        body = {"model": "simulated-1", "messages": messages, "temperature": 0.7, "max_tokens": job.max_tokens}
        response = await client.post(f"{job.url}/chat/completions", json={**body, **offered})
        if response.status_code == 429:
            raise RateLimited
        response.raise_for_status()
        said = response.json()["choices"][0]["message"]
        messages.append(said)
        if not said.get("tool_calls"):
            content: str = said["content"]
            return content
        for call in said["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            time.sleep(min(60.0 if job.hangs(arguments["case"]) else job.tool_s, 5.0))
            result = f"{arguments['case']} turn {arguments['turn']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    asyncio.run(collect(job))
