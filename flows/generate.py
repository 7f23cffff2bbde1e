"""Data alone: prompts, rollouts, dataset."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.forecast import announce
from tasks.generation import DATASET_STAGES, generate_dataset
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked
from tasks.run.run_name import run_name

STAGES = (PROMPTS, *DATASET_STAGES)


@flow(name="generate", flow_run_name=run_name, validate_parameters=False)
def generate(config: DistillConfig = DEMO) -> Published:
    """Sample the teacher and build the dataset, without training."""
    with tracked(config, "generate", STAGES) as run:
        prompts = load_prompts(run.config.prompts, run)
        announce(prompts, run)
        generate_dataset(prompts, run.config, run)
        return publish(run)
