"""Rows to fine-tune on that a teacher has sampled: what it says, right or wrong, at temperature 1."""

from pathlib import Path

import torch

from benchmarks.science.lab import Lab
from benchmarks.science.tasks.chain import Chain
from benchmarks.science.tasks.rows import write_rows
from stillhouse.config import OnPolicyConfig, StudentConfig, ToolsConfig
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.load import load_student
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines


def sampled_rows(lab: Lab, teacher: Path, chains: list[Chain], seed: int) -> Path:
    """One answer of the teacher's to each chain, as a file."""
    student = load_student(str(teacher), StudentConfig(parameters="full", dtype="float32"), torch.device("cpu"), seed=0)
    settings = OnPolicyConfig(max_tokens=lab.chains.max_tokens, max_turns=1, seed=seed)
    places = student.causal_lm.config.max_position_embeddings
    sampler = Sampler(student.tokenizer, Toolbox.from_config(ToolsConfig()), settings, places)
    with TransformersEngines(student, settings.max_concurrent).engine(0) as engine:
        trajectories = sampler.sample(engine, [chain.question().prompt for chain in chains], round_index=0)
    return write_rows(lab.data, [{"messages": trajectory.messages} for trajectory in trajectories])
