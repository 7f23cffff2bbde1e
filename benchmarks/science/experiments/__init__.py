"""One module for each question; `EXPERIMENTS` is all of them in order."""

from typing import Final

from benchmarks.science.experiments import (
    e01_grpo,
    e02_sft,
    e03_recovery,
    e05_one_prompt,
    e06_tool_output,
    e07_estimators,
    e08_staleness,
    e09_rank,
    e11_mixed,
    e12_prefix,
    e13_prune,
    e14_teachers,
    e15_token_weights,
)
from benchmarks.science.findings import Experiment

_MODULES: Final = (
    e01_grpo,
    e02_sft,
    e03_recovery,
    e05_one_prompt,
    e06_tool_output,
    e07_estimators,
    e08_staleness,
    e09_rank,
    e11_mixed,
    e12_prefix,
    e13_prune,
    e14_teachers,
    e15_token_weights,
)
EXPERIMENTS: Final[dict[str, Experiment]] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
"""By name."""
