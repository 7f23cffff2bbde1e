"""Evaluation alone: the student named in the config against its teacher, on the held-out prompts."""

from prefect import flow

from stillhouse.config import DistillConfig
from tasks.evaluation import evaluate
from tasks.models import base_student, teacher_model
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked


@flow(name="evaluate-models", validate_parameters=False)
def evaluate_models(config: DistillConfig = DistillConfig()) -> Published:
    """Measures `student.model` (a base or a trained student's folder) and the teacher."""
    with tracked(config, "evaluate-models") as run:
        prompts = load_prompts(run.config.prompts, run)
        for model in [base_student(run.config.student), teacher_model(run.config.teacher)]:
            evaluate(model, prompts, run.config, run)
        return publish(run)
