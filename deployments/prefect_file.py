"""Reads `deployments/prefect.yaml`: each deployment, and the config that it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.utilities.templating import apply_values, find_placeholders
from pydantic import ValidationError

from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject
from tasks.server.deploying import read_config

PREFECT_FILE: Final = Path(__file__).with_name("prefect.yaml")
_STEP: Final = "tasks.server.deploying.read_configs"
_KEYS: Final = frozenset(
    {"concurrency_limit", "description", "entrypoint", "name", "parameters", "paused", "schedules", "tags", "work_pool"}
)
_NEEDED: Final = frozenset({"entrypoint", "name", "work_pool"})
_KEYS_OF_SCHEDULES: Final = frozenset({"active", "parameters", "slug"})


@dataclass(frozen=True)
class Entry:
    """A deployment as it is written."""

    body: JsonObject
    steps: dict[str, JsonObject]

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def entrypoint(self) -> str:
        return str(self.body["entrypoint"])

    @property
    def configs(self) -> dict[str, str]:
        """Return the config that each of its placeholders names, by the step that reads it."""
        found = (each.name.rpartition(".") for each in find_placeholders(self.body.get("parameters", {})))
        return {step: name for step, _, name in found}

    def values(self) -> JsonObject:
        """Return what a person can set on Prefect's pages, as the file has it. Raises ConfigError on a wrong config."""
        configs = {
            step: {name: read_config(self.steps[step]["folder"], name, self.steps[step].get("overrides", ()))}
            for step, name in self.configs.items()
        }
        body = apply_values(self.body, configs)
        limit, pool = dict(body.get("concurrency_limit", {})), body["work_pool"]
        return {
            "description": body.get("description", ""),
            "tags": body.get("tags", []),
            "work_pool_name": pool["name"],
            "work_queue_name": pool.get("work_queue_name", "default"),
            "job_variables": pool.get("job_variables", {}),
            "concurrency_limit": limit.pop("limit", None),
            "concurrency_options": limit or None,
            "enforce_parameter_schema": True,
            "paused": body.get("paused", False),
            "schedules": {schedule.get("slug"): _schedule(schedule) for schedule in body.get("schedules", ())},
            "parameters": body.get("parameters", {}),
        }


def read_entries(file: Path = PREFECT_FILE) -> list[Entry]:
    """Return every deployment of a Prefect file. Raises ConfigError if it cannot be deployed as it is written."""
    try:
        body = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    steps = {step[_STEP]["id"]: step[_STEP] for step in body["build"]}
    entries = [Entry(entry, steps) for entry in body["deployments"]]
    for entry in entries:
        if wrong := sorted((entry.body.keys() - _KEYS) | (_NEEDED - entry.body.keys())):
            expected = f"expected {', '.join(sorted(_NEEDED))}, and perhaps {', '.join(sorted(_KEYS - _NEEDED))}"
            raise ConfigError(f"{file}: {entry.body.get('name')}: unknown or missing key {wrong[0]!r}; {expected}")
        if unknown := entry.configs.keys() - steps.keys():
            raise ConfigError(f"{file}: {entry.name}: no build step has the id {unknown.pop()!r}; there are {[*steps]}")
    return entries


def _schedule(written: JsonObject) -> JsonObject:
    when = {key: value for key, value in written.items() if key not in _KEYS_OF_SCHEDULES}
    rest = {key: value for key, value in written.items() if key in _KEYS_OF_SCHEDULES}
    try:
        if not written.get("slug"):
            raise ConfigError(f"{PREFECT_FILE.name}: schedule {when}: expected a slug, by which it is found again")
        return schedule_values(DeploymentScheduleCreate.model_validate({"schedule": when, **rest}))
    except ValidationError as error:
        raise ConfigError(f"{PREFECT_FILE.name}: schedule {written}: {error.errors()[0]['msg']}") from None


def schedule_values(schedule: DeploymentScheduleCreate | DeploymentSchedule) -> JsonObject:
    """Return a schedule as JSON, whether it is written in a file or known to a server."""
    return schedule.model_dump(mode="json", include={"active", "parameters", "schedule", "slug"})
