"""No client that anybody would use: `aiohttp`, `uvloop`, `orjson`, no limiter, no journal. The least Python costs."""

import asyncio
from collections.abc import Iterator
from typing import TextIO

import aiohttp
import orjson
import uvloop

from benchmarks.rollouts.sides.job import Job, Question, load, mark_ready, row


async def collect(job: Job) -> None:
    """Runs the job: workers that draw prompts from one iterator."""
    questions = (question for question in job.questions() for _ in range(job.num_samples))
    connector = aiohttp.TCPConnector(limit=0)
    with job.rows_file.open("w", encoding="utf-8") as rows:
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for _ in range(job.concurrency):
                group.create_task(_work(session, job, questions, rows))


async def _work(session: aiohttp.ClientSession, job: Job, questions: Iterator[Question], rows: TextIO) -> None:
    url, headers = f"{job.url}/chat/completions", {"content-type": "application/json"}
    for question in questions:
        body = {
            "model": "simulated-1",
            "messages": [{"role": "user", "content": question.text}],
            "temperature": 0.7,
            "max_tokens": job.max_tokens,
        }
        async with session.post(url, data=orjson.dumps(body), headers=headers) as response:
            answer = orjson.loads(await response.read())
        if job.keep_rows and response.status == 200:
            rows.write(row(question, answer["choices"][0]["message"]["content"]))


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    uvloop.run(collect(job))
