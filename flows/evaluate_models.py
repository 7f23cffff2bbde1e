"""Evaluation alone: models compared on the held-out prompts, and the best student promoted if the config says so."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.governance.champion import candidates, find_champion
from tasks.governance.comparison import COMPARISON_STAGES, compare
from tasks.governance.promotion import promote
from tasks.models import base_student
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked
from tasks.run.run_name import run_name

STAGES = (PROMPTS, *COMPARISON_STAGES)


@flow(name="evaluate-models", flow_run_name=run_name, validate_parameters=False)
def evaluate_models(config: DistillConfig = DEMO) -> Published:
    """Compare `student.model` (a base or a trained student's folder), champion, candidates and teacher."""
    with tracked(config, "evaluate-models", STAGES) as run:
        prompts = load_prompts(run.config.prompts, run)
        base = base_student(run.config.student)
        promote(compare(base, find_champion(run), candidates(run), prompts, run), run)
        return publish(run)
