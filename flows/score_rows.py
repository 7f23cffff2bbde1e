"""A teacher's scores of the rows to train on, for `sft.loss: kl`, without training."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.generation import generate_dataset
from tasks.models import base_student
from tasks.prompts import load_prompts
from tasks.publish import Published, publish, tracked
from tasks.scoring import score_rows as score


@flow(name="score-rows", validate_parameters=False)
def score_rows(config: DistillConfig = DEMO) -> Published:
    """Scores the dataset that the config describes, `sft.sources`, or both; a training finds the scores."""
    with tracked(config, "score-rows") as run:
        dataset = None
        if run.config.sft.dataset_weight > 0.0:
            dataset = generate_dataset(load_prompts(run.config.prompts, run), run.config, run)
        score(base_student(run.config.student), dataset, run.config, run)
        return publish(run)
