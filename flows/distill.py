"""The whole DAG: prompts, rollouts, dataset, SFT, on-policy distillation, evaluation."""

from prefect import flow

from stillhouse.config import DistillConfig
from tasks.approval import require_approval
from tasks.evaluation import evaluate
from tasks.generation import generate_dataset
from tasks.models import base_student, teacher_model
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.training import train_on_policy, train_sft


@flow(name="distill", validate_parameters=False)
def distill(config: DistillConfig = DistillConfig()) -> Published:
    """Distils the teacher into the student and measures what it gained on held-out prompts."""
    with tracked(config, "distill") as run:
        prompts = load_prompts(run.config.prompts, run)
        students = [base_student(run.config.student)]
        if run.config.sft.enabled:
            own = run.config.sft.dataset_weight > 0.0
            dataset = generate_dataset(prompts, run.config, run) if own else None
            require_approval(dataset, run)
            students.append(train_sft(students[-1], dataset, run.config, run))
        if run.config.on_policy.enabled:
            students.append(train_on_policy(students[-1], prompts, run.config, run))
        if run.config.evaluation.enabled:
            for model in [*students, teacher_model(run.config.teacher)]:
                evaluate(model, prompts, run.config, run)
        return publish(run)
