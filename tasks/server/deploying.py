"""The build step of `deployments/prefect.yaml`: the configs in it."""

from collections.abc import Sequence
from pathlib import Path

from stillhouse.config import load_config
from stillhouse.config.section import Section
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject


def read_configs(folder: str, overrides: Sequence[str] = ()) -> dict[str, JsonObject]:
    """Return every config below a folder by the stem of its file; a build step of `prefect.yaml`.

    Defaults are written out, so that Prefect's form shows the value that each field has; those that are null are not,
    since what its form shows as a plain field takes no null in a deployment. Raises ConfigError if a file is no config,
    two have one stem, or there is none.
    """
    configs: dict[str, JsonObject] = {}
    for path in sorted(Path(folder).rglob("*.yaml")):
        if path.stem in configs:
            raise ConfigError(
                f"{path}: {folder} holds another config of that name; deployments are named by it, rename one"
            )
        configs[path.stem] = _without_nulls(load_config(path, overrides))
    if not configs:
        raise ConfigError(
            f"{Path(folder).absolute()}: expected configs (*.yaml), saw none; deploy from the project's root"
        )
    return configs


def _without_nulls(section: Section) -> JsonObject:
    body: JsonObject = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is None and field.default is None:
            body.pop(name, None)
        elif isinstance(value, Section) and name in body:
            body[name] = _without_nulls(value)
        elif isinstance(value, tuple) and name in body:
            body[name] = [
                _without_nulls(each) if isinstance(each, Section) else dumped
                for each, dumped in zip(value, body[name], strict=True)
            ]
    return body
