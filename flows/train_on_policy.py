"""On-policy distillation alone: prompts and a student to start from."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.governance.champion import find_champion, start_of_training
from tasks.models import base_student
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked
from tasks.run.run_name import run_name
from tasks.training import ON_POLICY_STAGES
from tasks.training import train_on_policy as train

STAGES = (PROMPTS, *ON_POLICY_STAGES)


@flow(name="train-on-policy", flow_run_name=run_name, validate_parameters=False)
def train_on_policy(config: DistillConfig = DEMO) -> Published:
    """Distil on what the student samples, starting from `student.model`, which may be a trained student's folder."""
    with tracked(config, "train-on-policy", STAGES) as run:
        prompts = load_prompts(run.config.prompts, run)
        start = start_of_training(base_student(run.config.student), find_champion(run), run)
        train(start, prompts, run.config, run)
        return publish(run)
