"""Supervised fine-tuning: prompts, rollouts and dataset as far as they are not cached, then the student."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.generation import generate_dataset
from tasks.governance.approval import require_approval
from tasks.governance.champion import find_champion, start_of_training
from tasks.models import base_student
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.training import train_sft as train


@flow(name="train-sft", validate_parameters=False)
def train_sft(config: DistillConfig = DEMO) -> Published:
    """Fine-tunes the student on the dataset that the config describes, on `sft.sources`, or on both."""
    with tracked(config, "train-sft") as run:
        dataset = None
        if run.config.sft.dataset_weight > 0.0:
            dataset = generate_dataset(load_prompts(run.config.prompts, run), run.config, run)
            require_approval(dataset, run)
        start = start_of_training(base_student(run.config.student), find_champion(run), run)
        train(start, dataset, run.config, run)
        return publish(run)
