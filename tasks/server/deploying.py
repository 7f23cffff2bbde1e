"""The build step of `deployments/prefect.yaml`: the configs in it."""

from collections.abc import Sequence
from pathlib import Path

from stillhouse.config import load_config
from stillhouse.config.section import Section
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject


def read_configs(folder: str, overrides: Sequence[str] = ()) -> dict[str, JsonObject]:
    """Return every config below a folder by the stem of its file, as a build step of `prefect.yaml`."""
    names = {path.stem for path in Path(folder).rglob("*.yaml")}
    if not names:
        raise ConfigError(
            f"{Path(folder).absolute()}: expected configs (*.yaml), saw none; deploy from the project's root"
        )
    return {name: read_config(folder, name, overrides) for name in sorted(names)}


def read_config(folder: str, name: str, overrides: Sequence[str] = ()) -> JsonObject:
    """Return the config below a folder whose file has that stem. Raises ConfigError unless it is one, and alone."""
    found = sorted(path for path in Path(folder).rglob("*.yaml") if path.stem == name)
    if len(found) != 1:
        saw = ", ".join(map(str, found)) or "none"
        raise ConfigError(f"{folder}: expected one {name}.yaml, after which deployments are named, saw {saw}")
    return form_values(load_config(found[0], overrides))


def form_values(section: Section) -> JsonObject:
    """Return a config as the parameter of a deployment.

    Defaults are written out, so that Prefect's form shows the value that each field has; those that are null are not,
    since what its form shows as a plain field takes no null in a deployment.
    """
    body: JsonObject = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is None and field.default is None:
            body.pop(name, None)
        elif isinstance(value, Section) and name in body:
            body[name] = form_values(value)
        elif isinstance(value, tuple) and name in body:
            body[name] = [
                form_values(each) if isinstance(each, Section) else dumped
                for each, dumped in zip(value, body[name], strict=True)
            ]
    return body
