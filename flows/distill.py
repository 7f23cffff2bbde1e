"""The whole DAG: prompts, rollouts, dataset, SFT, on-policy distillation, evaluation."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.generation import generate_dataset
from tasks.governance.approval import require_approval
from tasks.governance.champion import find_champion, start_of_training
from tasks.governance.comparison import compare
from tasks.governance.promotion import promote
from tasks.models import base_student
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.training import train_on_policy, train_sft


@flow(name="distill", validate_parameters=False)
def distill(config: DistillConfig = DEMO) -> Published:
    """Distils the teacher into the student, measures what it gained on held-out prompts, and promotes it or not."""
    with tracked(config, "distill") as run:
        prompts = load_prompts(run.config.prompts, run)
        base, champion = base_student(run.config.student), find_champion(run)
        students = [start_of_training(base, champion, run)]
        if run.config.sft.enabled:
            needs_dataset = run.config.sft.dataset_weight > 0.0
            dataset = generate_dataset(prompts, run.config, run) if needs_dataset else None
            require_approval(dataset, run)
            students.append(train_sft(students[-1], dataset, run.config, run))
        if run.config.on_policy.enabled:
            students.append(train_on_policy(students[-1], prompts, run.config, run))
        if run.config.evaluation.enabled:
            promote(compare(base, champion, students[1:], prompts, run), run)
        return publish(run)
