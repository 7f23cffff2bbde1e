"""What may go through a batch endpoint, and its limits."""

from typing import Final

from stillhouse.config import ModelRole, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.rate_limit import Caps, Controller, RateControl

MAX_REQUESTS: Final = 50_000
"""Requests of one batch at OpenAI (https://platform.openai.com/docs/guides/batch), hence how many to send at once."""


def batch_controller() -> Controller:
    """A controller that admits everything at once: a batch endpoint has a queue and limits of its own.

    A batch refused for too many tokens in that queue still shuts the gate.
    """
    return Controller(RateControl(MAX_REQUESTS, Caps(MAX_REQUESTS)))


def require_batchable(
    teacher: TeacherConfig, rollouts: RolloutsConfig, tools: ToolsConfig, role: ModelRole = ModelRole.TEACHER
) -> None:
    """Validates that each rollout takes one turn and may wait for hours, if `teacher.batch` is set.

    Raises:
        ConfigError: they do not; the message names every such field.
    """
    if not teacher.batch:
        return
    against = []
    if teacher.base_url is None:
        against.append(f"{role.section}.base_url is not set: a model served by this machine has no batch endpoint")
    for field in ("builtin", "file", "mcp"):
        if value := getattr(tools, field):
            against.append(f"tools.{field} is {value!r}: a rollout with tools takes several turns")
    if rollouts.termination_policy == "max_turns" and rollouts.max_turns > 1:
        against.append(
            f"rollouts.termination_policy is 'max_turns' and rollouts.max_turns is {rollouts.max_turns}: set it to 1"
        )
    if rollouts.response_schema and rollouts.max_corrections > 0:
        against.append(
            f"rollouts.max_corrections is {rollouts.max_corrections} with a rollouts.response_schema: set it to 0"
        )
    if rollouts.timeout_s is not None:
        against.append(f"rollouts.timeout_s is {rollouts.timeout_s:g}: a batch may take 24 hours; leave it out")
    if against:
        raise ConfigError(
            f"{role.section}.batch asks for one turn a rollout, but {'; '.join(against)}. Change these, or set "
            f"{role.section}.batch to false"
        )
