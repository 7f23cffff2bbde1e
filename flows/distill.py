"""The whole DAG: prompts, rollouts, dataset, SFT, self-training, on-policy distillation, evaluation."""

from prefect import flow

from stillhouse.config import DEMO, DistillConfig
from tasks.forecast import announce
from tasks.generation import DATASET_STAGES, generate_dataset, needs_dataset
from tasks.governance.approval import APPROVAL, require_approval
from tasks.governance.champion import find_champion, start_of_training
from tasks.governance.comparison import COMPARISON, COMPARISON_STAGES, compare
from tasks.governance.promotion import promote
from tasks.models import base_student
from tasks.prompts import PROMPTS, load_prompts
from tasks.publish import Published, publish, tracked
from tasks.run.run_name import run_name
from tasks.run.stage import only_if
from tasks.self_training import OWN_ROLLOUTS, self_train
from tasks.training import ON_POLICY, ON_POLICY_STAGES, SFT, SFT_STAGES, train_on_policy, train_sft

STAGES = (
    PROMPTS,
    *only_if(lambda config: config.sft.enabled, *only_if(needs_dataset, *DATASET_STAGES, APPROVAL), *SFT_STAGES),
    OWN_ROLLOUTS.only_if(lambda config: config.self_training.enabled),
    *only_if(lambda config: config.on_policy.enabled, *ON_POLICY_STAGES),
    *only_if(lambda config: config.evaluation.enabled, *COMPARISON_STAGES),
)


@flow(name="distill", flow_run_name=run_name, validate_parameters=False)
def distill(config: DistillConfig = DEMO) -> Published:
    """Distil the teacher into the student, measure what it gained on held-out prompts, and promote it or not."""
    with tracked(config, "distill", STAGES) as run:
        prompts = load_prompts(run.config.prompts, run)
        announce(prompts, run)
        base, champion = base_student(run.config.student), find_champion(run)
        students, dataset = [start_of_training(base, champion, run)], None
        if run.plans(SFT):
            dataset = generate_dataset(prompts, run.config, run) if needs_dataset(run.config) else None
            require_approval(dataset, run)
            students.append(train_sft(students[-1], dataset, run.config, run))
        if run.plans(OWN_ROLLOUTS):
            students.append(self_train(students[-1], prompts, dataset, run.config, run))
        if run.plans(ON_POLICY):
            students.append(train_on_policy(students[-1], prompts, run.config, run))
        if run.plans(COMPARISON):
            promote(compare(base, champion, students[1:], prompts, run), run)
        return publish(run)
