"""distilabel: a pipeline of one `TextGeneration` over an OpenAI-compatible model.

Its step sends a batch at a time, so the batch is as large as what may be in flight; `use_cache` lets it go on after a
kill.
"""

# The package is in an environment of its own.
# mypy: disable-error-code="import-not-found"

from pathlib import Path

from distilabel.models.llms import OpenAILLM
from distilabel.pipeline import Pipeline
from distilabel.steps import LoadDataFromDicts
from distilabel.steps.tasks import TextGeneration

from benchmarks.rollouts.sides.job import Job, load, mark_ready, row


def collect(job: Job) -> None:
    """Runs the job."""
    data = [{"instruction": text, "case": case} for case, text in job.questions() for _ in range(job.num_samples)]
    with Pipeline(name="casks", cache_dir=str(Path(job.folder) / "cache")) as pipeline:
        prompts = LoadDataFromDicts(name="prompts", data=data, batch_size=job.concurrency)
        model = OpenAILLM(
            model="simulated-1",
            base_url=job.url,
            api_key="none",
            max_retries=6,
            timeout=600,
            generation_kwargs={"max_new_tokens": job.max_tokens, "temperature": 0.7},
        )
        prompts >> TextGeneration(name="answers", llm=model, input_batch_size=job.concurrency)
    rows = pipeline.run(use_cache=True)["default"]["train"]
    with job.rows_file.open("w", encoding="utf-8") as file:
        file.writelines(row((one["case"], ""), one["generation"]) for one in rows)


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    collect(job)
