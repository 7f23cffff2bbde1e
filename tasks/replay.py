"""Replay: the turns of trajectories that were paid for, as prompts from which the student writes one turn."""

from pathlib import Path

from stillhouse.config import DistillConfig
from stillhouse.dataset.read import read_file
from stillhouse.dataset.states import replayed_states
from stillhouse.types import Artifact
from tasks.cache.stage import call_stage
from tasks.generation import DATASET_STAGES, generate_dataset, needs_dataset
from tasks.prompts import PromptSets, write_metadata, write_prompts
from tasks.run.context import Run, RunContext
from tasks.run.stage import Stage, only_if

REPLAY = Stage(
    "replay",
    version=1,
    result="{states} turns of {trajectories} trajectories",
    when=lambda config: config.on_policy.source == "replay",
)
REPLAY_STAGES = (*only_if(REPLAY.when, *DATASET_STAGES), REPLAY)


def uses_dataset(config: DistillConfig) -> bool:
    """Return whether SFT learns the run's dataset, or on-policy distillation goes on from its turns."""
    replays = config.on_policy.enabled and REPLAY.when(config)
    return replays or (config.sft.enabled and needs_dataset(config))


def with_replay(prompts: PromptSets, config: DistillConfig, run: Run) -> PromptSets:
    """Return the prompts of on-policy distillation, for the source `replay` turns of the dataset's trajectories."""
    if not run.plans(REPLAY):
        return prompts
    dataset = generate_dataset(prompts, config, run)
    settings = config.on_policy
    states: PromptSets = call_stage(
        REPLAY,
        run,
        dataset=dataset,
        decay=settings.replay_decay,
        number=settings.num_batches * settings.prompts_per_step,
        seed=settings.trainer.seed,
    )
    held_out = {"held_out": prompts.held_out, "held_out_metadata": prompts.held_out_metadata}
    return states.model_copy(update=held_out)


@REPLAY.made_by
def replay_task(dataset: Artifact, decay: float, number: int, seed: int, key: str, context: RunContext) -> PromptSets:
    """Draw turns of the dataset's rows."""
    rows = list(read_file(Path(dataset.uri) / "train.parquet"))
    states, metadata = replayed_states(rows, decay, number, seed)
    store = context.store
    nothing = {"held_out": write_prompts(store, []), "held_out_metadata": write_metadata(store, [])}
    facts = {"states": len(states), "trajectories": len(rows)}
    return PromptSets(
        train=write_prompts(store, states), train_metadata=write_metadata(store, metadata), facts=facts, **nothing
    )
