"""Writes a project that runs as it is, with a config, prompts, tools and rewards for the user to change."""

from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from stillhouse.errors import ConfigError
from stillhouse.store.atomic import write_atomic

Template = Literal["sft", "on-policy"]
"""Config of the project: SFT on the teacher's trajectories, or on-policy distillation after it."""

_COMMON: Final = {
    "prompts.jsonl": "prompts.jsonl",
    "tools.py": "tools.py",
    "rewards.py": "rewards.py",
    "test_project.py": "test_project.py",
    "README.md": "README.md",
    # Renamed in the package: git and the builds of wheels would obey the one, and leave out the other.
    "gitignore": ".gitignore",
    "env.example": ".env.example",
}
"""Files of the package, and their names in a project."""


def create_project(folder: Path, template: Template) -> list[Path]:
    """Write the project's files into `folder`, and return them, the config first. Other files there are kept.

    Raises:
        ConfigError: a file of the project exists already; nothing is written then.
        StoreError: the folder cannot be written to.
    """
    shipped = {f"{template}.yaml": "config.yaml", **_COMMON}
    existing = [name for name in shipped.values() if (folder / name).exists()]
    if existing:
        raise ConfigError(
            f"{folder}: has these already, and nothing there is overwritten: {', '.join(existing)}. Name another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; expected a folder, or a name for a new one")
    source = files(__package__) / "files"
    for name, written in shipped.items():
        write_atomic(folder / written, (source / name).read_bytes())
    return [folder / written for written in shipped.values()]
