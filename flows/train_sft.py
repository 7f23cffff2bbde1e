"""Supervised fine-tuning: prompts, rollouts and dataset as far as they are not cached, then the student."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.dataset import DATASET
from tasks.forecast import announce
from tasks.generation import DATASET_STAGES, generate_dataset, needs_dataset
from tasks.governance.approval import APPROVAL, require_approval
from tasks.governance.champion import find_champion, start_of_training
from tasks.models import base_student
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked
from tasks.run.run_name import run_name
from tasks.run.stage import only_if
from tasks.training import SFT_STAGES
from tasks.training import train_sft as train

STAGES = (*only_if(needs_dataset, PROMPTS, *DATASET_STAGES, APPROVAL), *SFT_STAGES)


@flow(name="train-sft", flow_run_name=run_name, validate_parameters=False)
def train_sft(config: DistillConfig = DEMO) -> Published:
    """Fine-tune the student on the dataset that the config describes, on `sft.sources`, or on both."""
    with tracked(config, "train-sft", STAGES) as run:
        dataset = None
        if run.plans(DATASET):
            prompts = load_prompts(run.config.prompts, run)
            announce(prompts, run)
            dataset = generate_dataset(prompts, run.config, run)
            require_approval(dataset, run)
        start = start_of_training(base_student(run.config.student), find_champion(run), run)
        train(start, dataset, run.config, run)
        return publish(run)
