"""The name of a flow run, which its MLflow run shares."""

import re
from contextlib import suppress
from pathlib import Path

from prefect.runtime import deployment, flow_run

from stillhouse.errors import ConfigError
from tasks.run.given_config import given_config

_UNNAMED = re.compile(r"[a-z]+-[a-z]+", re.IGNORECASE)
"""Prefect calls such runs `expensive-skylark`, and its form `Expensive-Skylark`."""


def run_name(config_name: str | None = None) -> str:
    """Return such as `nightly, Qwen3-0.6B, 27 Nov 03:30`: config or else deployment, student, minute of the schedule.

    A run of `generate` has the teacher. A name that a person gave stays.
    """
    if not _UNNAMED.fullmatch(str(flow_run.name)):
        return str(flow_run.name)
    parts = [config_name or deployment.name or flow_run.flow_name]
    config = flow_run.parameters["config"]
    # The flow says what is wrong with a config.
    with suppress(ConfigError):
        config = given_config(config) if isinstance(config, dict) else config
        model = config.teacher.model if flow_run.flow_name == "generate" else config.student.model
        parts.append(Path(model).name)
    return ", ".join([*parts, f"{flow_run.scheduled_start_time.astimezone():%d %b %H:%M}"])
