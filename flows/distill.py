"""The whole DAG: prompts, rollouts, dataset, SFT, on-policy distillation, evaluation."""

from prefect import flow

from stillhouse.config import DistillConfig
from tasks.evaluation import evaluate
from tasks.generation import generate_dataset
from tasks.models import base_student, teacher_model
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.training import train_on_policy, train_sft


@flow(name="distill")
def distill(config: DistillConfig = DistillConfig()) -> Published:
    """Distils the teacher into the student and measures what it gained on held-out prompts."""
    with tracked(config, "distill") as run:
        prompts = load_prompts(config.prompts, run)
        students = [base_student(config.student)]
        if config.sft.enabled:
            dataset = generate_dataset(prompts, config, run)
            students.append(train_sft(students[-1], dataset, config, run))
        if config.on_policy.enabled:
            students.append(train_on_policy(students[-1], prompts, config, run))
        if config.evaluation.enabled:
            for model in [*students, teacher_model(config.teacher)]:
                evaluate(model, prompts, config, run)
        return publish(run)
