"""DataDesigner: one column of text over a seed dataset, adaptive admission up to what may be in flight."""

# The package is in an environment of its own.
# mypy: disable-error-code="import-not-found"

import os
from pathlib import Path

from benchmarks.rollouts.sides.job import Job, load, mark_ready, row

os.environ |= {"NEMO_TELEMETRY_ENABLED": "false", "SIMULATED_API_KEY": "none"}

import data_designer.config as dd
import pandas as pd
from data_designer.interface import DataDesigner


def collect(job: Job) -> None:
    """Runs the job."""
    folder = Path(job.folder)
    data = [question._asdict() for question in job.questions() for _ in range(job.num_samples)]
    seeds = folder / "seeds.parquet"
    if not seeds.exists():
        pd.DataFrame(data).to_parquet(seeds)
    sampling = dd.ChatCompletionInferenceParams(
        max_parallel_requests=job.concurrency, timeout=600, max_tokens=job.max_tokens, temperature=0.7
    )
    model = dd.ModelConfig(
        alias="teacher",
        model="simulated-1",
        provider="simulated",
        inference_parameters=sampling,
        skip_health_check=True,
    )
    config = dd.DataDesignerConfigBuilder(model_configs=[model])
    config.with_seed_dataset(dd.LocalFileSeedSource(path=str(seeds)))
    config.add_column(dd.LLMTextColumnConfig(name="answer", model_alias="teacher", prompt="{{ text }}"))
    provider = dd.ModelProvider(name="simulated", endpoint=job.url, api_key="SIMULATED_API_KEY")
    designer = DataDesigner(artifact_path=folder / "artifacts", model_providers=[provider])
    designer.set_run_config(dd.RunConfig(disable_early_shutdown=True, max_in_flight_tasks=max(1024, job.concurrency)))
    created = designer.create(config, num_records=len(data), dataset_name="casks", resume=dd.ResumeMode.IF_POSSIBLE)
    answered = created.load_dataset()
    with job.rows_file.open("w", encoding="utf-8") as file:
        file.writelines(row((one["case"], ""), one["answer"]) for one in answered.to_dict("records"))


if __name__ == "__main__":
    job = load()
    mark_ready(job)
    collect(job)
