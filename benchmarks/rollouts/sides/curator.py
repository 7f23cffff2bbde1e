"""curator: its backend for OpenAI, its own limits out of the way, since the provider's are hidden from all."""

# The package is in an environment of its own.
# mypy: disable-error-code="import-not-found"

import os
from typing import Any

from benchmarks.rollouts.sides.job import Job, load, mark_ready, row

os.environ |= {"CURATOR_DISABLE_RICH_DISPLAY": "1", "TELEMETRY_ENABLED": "0", "OPENAI_API_KEY": "none"}

import requests
import tiktoken
from bespokelabs import curator
from datasets import Dataset


class Casks(curator.LLM):
    """One prompt a row."""

    def prompt(self, row: dict[str, Any]) -> str:
        """The prompt."""
        text: str = row["text"]
        return text

    def parse(self, row: dict[str, Any], response: str) -> dict[str, Any]:
        """The row kept."""
        return {"case": row["case"], "answer": response}


def collect(job: Job) -> None:
    """Runs the job."""
    _count_tokens_offline()
    data = [question._asdict() for question in job.questions() for _ in range(job.num_samples)]
    casks = Casks(
        model_name="simulated-1",
        backend="openai",
        generation_params={"max_tokens": job.max_tokens, "temperature": 0.7},
        backend_params={
            "base_url": job.url,
            "max_requests_per_minute": 10_000_000,
            "max_tokens_per_minute": 1_000_000_000,
            "max_concurrent_requests": job.concurrency,
            "max_retries": 10,
            "require_all_responses": False,
        },
    )
    answered = casks(Dataset.from_list(data), working_dir=os.path.join(job.folder, "work")).dataset
    with job.rows_file.open("w", encoding="utf-8") as file:
        file.writelines(row((one["case"], ""), one["answer"]) for one in answered)


def _count_tokens_offline() -> None:
    """Counts bytes where the vocabulary by which curator counts tokens cannot be downloaded."""
    try:
        tiktoken.get_encoding("cl100k_base")
    except requests.exceptions.RequestException:
        every_byte = {bytes([value]): value for value in range(256)}
        in_bytes = tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=every_byte, special_tokens={})
        for name in ("get_encoding", "encoding_for_model"):
            setattr(tiktoken, name, lambda _name: in_bytes)


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    collect(job)
