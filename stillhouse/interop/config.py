"""A foreign config as `config.yaml`, together with the rows it names, where they are at hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import yaml

from stillhouse.interop.formats import config_body
from stillhouse.interop.mapping import ConfigMapper
from stillhouse.interop.output import PROMPTS, TRAJECTORIES, Output
from stillhouse.interop.rnow_config import map_rnow
from stillhouse.interop.roll_config import map_roll

_ABSENT: Final = "a data file that is not there: convert it by itself and name what comes of it in prompts.source"
_ROWS: Final = {"rnow-config": "rnow-jsonl", "roll-config": "roll-jsonl"}

ReadFiles = Callable[[str, Sequence[Path]], None]
"""(row format, files) -> None: converts rows into the same folder."""


def write_config(source: Path, output: Path, out: Output, read_files: ReadFiles) -> None:
    """Writes what the config `source` says in our terms, and everything it says that we have no terms for.

    Args:
        source: the YAML file.
        output: the folder in which the result will lie, for the paths in the config.
        out: takes the files.
        read_files: converts the rows of the data files that the config names.

    Raises:
        ConfigError: the values do not go together.
        InputError: the file is not YAML.
    """
    form = out.account.form
    mapper = ConfigMapper()
    body = config_body(source)
    named = map_rnow(body, mapper, source.parent) if form == "rnow-config" else map_roll(body, mapper)
    found = {name: path for name in named if (path := _find(name, source.parent)) is not None}
    if found:
        read_files(_ROWS[form], list(found.values()))
    for name in named:
        if name not in found:
            mapper.leave(_ABSENT, "data", name)
    if out.account.prompts:
        mapper.set("prompts.source", str(output / PROMPTS))
    elif named:
        mapper.set("prompts.source", named[0], "data", named[0])
    if out.account.trajectories and mapper.get("sft.enabled"):
        mapper.set("rollouts.trajectories_file", str(output / TRAJECTORIES))
    ours = mapper.body()
    out.config(
        f"# What {source} says, as stillhouse convert reads it; {_rest(mapper)}\n"
        + yaml.safe_dump(ours, sort_keys=False)
    )
    for unmapped in mapper.unmapped:
        out.unmapped(str(source), unmapped)


def _find(name: str, folder: Path) -> Path | None:
    """A data file, named from the config's folder (rnow) or from where the pipeline is started (ROLL)."""
    return next((path for path in (folder / name, Path(name)) if path.is_file()), None)


def _rest(mapper: ConfigMapper) -> str:
    return "unmapped.jsonl lists the rest." if mapper.unmapped else "nothing was left over."
