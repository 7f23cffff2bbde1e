"""Data alone: prompts, rollouts, dataset."""

from prefect import flow

from stillhouse.config import DistillConfig
from tasks.dataset import build_dataset
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.rollouts import sample_teacher


@flow(name="generate")
def generate(config: DistillConfig = DistillConfig()) -> Published:
    """Samples the teacher and builds the dataset, without training."""
    with tracked(config, "generate") as run:
        prompts = load_prompts(config.prompts, run)
        rollouts = sample_teacher(prompts, config.teacher, config.rollouts, config.tools, run)
        build_dataset(rollouts, prompts, config.dataset, config.student, run)
        return publish(run)
