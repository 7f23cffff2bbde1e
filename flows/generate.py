"""Data alone: prompts, rollouts, dataset."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.generation import STAGES as GENERATION
from tasks.generation import generate_dataset
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked

STAGES = (PROMPTS, *GENERATION)


@flow(name="generate", validate_parameters=False)
def generate(config: DistillConfig = DEMO) -> Published:
    """Samples the teacher and builds the dataset, without training."""
    with tracked(config, "generate", STAGES) as run:
        prompts = load_prompts(run.config.prompts, run)
        generate_dataset(prompts, run.config, run)
        return publish(run)
