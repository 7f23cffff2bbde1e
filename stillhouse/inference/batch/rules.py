"""What can be asked through a batch endpoint, and its limits: none that a window or a pace would keep."""

from typing import Final

from stillhouse.config import ModelRole, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.rate_limit import Caps, Controller, RateControl

MAX_REQUESTS: Final = 50_000
"""Requests of one batch at OpenAI (https://platform.openai.com/docs/guides/batch), hence how many to ask at once."""


def batch_controller() -> Controller:
    """A controller of its own for a collection through a batch endpoint, which queues what it is given.

    What the endpoint's other paths allow is no measure here; a batch refused for too many tokens in the queue still
    shuts the gate.
    """
    return Controller(RateControl(MAX_REQUESTS, Caps(MAX_REQUESTS)))


def require_batchable(
    teacher: TeacherConfig, rollouts: RolloutsConfig, tools: ToolsConfig, role: ModelRole = ModelRole.TEACHER
) -> None:
    """Lets pass what takes one turn a rollout and does not mind waiting for hours.

    Args:
        teacher: the section of who is asked.
        rollouts: what is sampled.
        tools: what may be called.
        role: whose section `teacher` is.

    Raises:
        ConfigError: `teacher.batch` is set with something that does; the message names every such field.
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
