"""The models behind endpoints that a run samples, and how."""

from collections.abc import Collection, Iterator
from typing import Literal

from stillhouse.config import DistillConfig, RolloutsConfig, TeacherConfig
from stillhouse.dataset.judge import judge_rollouts
from stillhouse.types import FrozenModel

_ALL = frozenset({"rollouts", "judge"})


class PaidModel(FrozenModel):
    """A model and what it is asked for."""

    role: Literal["TEACHER", "JUDGE"]
    teacher: TeacherConfig
    rollouts: RolloutsConfig
    has_tools: bool = False


def paid_models(config: DistillConfig, stages: Collection[str] = _ALL) -> Iterator[PaidModel]:
    """Yield the models that these stages ask at endpoints."""
    teacher, tools, judge = config.teacher, config.tools, config.dataset.judge
    samples = config.rollouts.trajectories_file is None and "rollouts" in stages
    if teacher.base_url is not None and (samples or "evaluation" in stages):
        has_tools = bool(tools.builtin or tools.file or tools.mcp)
        yield PaidModel(role="TEACHER", teacher=teacher, rollouts=config.rollouts, has_tools=has_tools)
    if judge.enabled and judge.model.base_url is not None and "judge" in stages:
        asked = judge_rollouts(judge, verdict=not judge.rubric)
        yield PaidModel(role="JUDGE", teacher=judge.model, rollouts=asked)
