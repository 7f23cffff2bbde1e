"""Reads a file of deployments as `prefect deploy` does."""

from pathlib import Path
from typing import Any

import yaml
from prefect.utilities.templating import apply_values

from stillhouse.types import JsonObject
from tasks.server.deploying import read_configs


def read_deployments(prefect_file: Path, root: Path) -> list[JsonObject]:
    """Return a Prefect file's deployments, placeholders filled as `prefect deploy` does in the project's root.

    All build steps of the file have to be `read_configs`.
    """
    body = yaml.safe_load(prefect_file.read_text(encoding="utf-8"))
    values: dict[str, Any] = {}
    for step in body["build"]:
        options = step["tasks.server.deploying.read_configs"]
        values[options["id"]] = read_configs(str(root / options["folder"]), options.get("overrides", ()))
    return [apply_values(entry, values) for entry in body["deployments"]]
