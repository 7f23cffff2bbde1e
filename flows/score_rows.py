"""A teacher's scores of the rows to train on, for `sft.loss: kl`, without training."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.dataset import DATASET
from tasks.generation import DATASET_STAGES, generate_dataset, needs_dataset
from tasks.models import base_student
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked
from tasks.run.run_name import run_name
from tasks.run.stage import only_if
from tasks.scoring import SCORES
from tasks.scoring import score_rows as score

STAGES = (*only_if(needs_dataset, PROMPTS, *DATASET_STAGES), SCORES)


@flow(name="score-rows", flow_run_name=run_name, validate_parameters=False)
def score_rows(config: DistillConfig = DEMO) -> Published:
    """Score the dataset that the config describes, `sft.sources`, or both; a training finds the scores."""
    with tracked(config, "score-rows", STAGES) as run:
        dataset = None
        if run.plans(DATASET):
            dataset = generate_dataset(load_prompts(run.config.prompts, run), run.config, run)
        score(base_student(run.config.student), dataset, run.config, run)
        return publish(run)
