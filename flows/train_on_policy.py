"""On-policy distillation alone: prompts and a student to start from."""

from prefect import flow

from stillhouse.config import DistillConfig
from tasks.models import base_student
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.training import train_on_policy as train


@flow(name="train-on-policy", validate_parameters=False)
def train_on_policy(config: DistillConfig = DistillConfig()) -> Published:
    """Distils on what the student samples, starting from `student.model`, which may be a trained student's folder."""
    with tracked(config, "train-on-policy") as run:
        prompts = load_prompts(run.config.prompts, run)
        train(base_student(run.config.student), prompts, run.config, run)
        return publish(run)
