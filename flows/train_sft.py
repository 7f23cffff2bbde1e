"""Supervised fine-tuning: prompts, rollouts and dataset as far as they are not at hand, then the student."""

from prefect import flow

from stillhouse.config import DistillConfig
from tasks.generation import generate_dataset
from tasks.models import base_student
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.training import train_sft as train


@flow(name="train-sft", validate_parameters=False)
def train_sft(config: DistillConfig = DistillConfig()) -> Published:
    """Fine-tunes the student on the dataset that the config describes."""
    with tracked(config, "train-sft") as run:
        prompts = load_prompts(run.config.prompts, run)
        dataset = generate_dataset(prompts, run.config, run)
        train(base_student(run.config.student), dataset, run.config, run)
        return publish(run)
