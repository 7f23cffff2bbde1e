"""Writes a project that runs as it is: its config, prompts, tools and rewards are the user's to change."""

from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from stillhouse.errors import ConfigError
from stillhouse.store.atomic import write_atomic

Template = Literal["sft", "on-policy"]
"""What the project's config does: learn from what the teacher writes, or also from what the student writes itself."""

_COMMON: Final = {
    "prompts.jsonl": "prompts.jsonl",
    "tools.py": "tools.py",
    "rewards.py": "rewards.py",
    "README.md": "README.md",
    # A package cannot carry these under their own names: git and the builds of wheels would obey the one, and hide
    # the other.
    "gitignore": ".gitignore",
    "env.example": ".env.example",
}
"""Files of the package, and their names in a project."""


def create_project(folder: Path, template: Template) -> list[Path]:
    """Writes the project's files into `folder`, which is made where there is none.

    Args:
        folder: where it goes; other files that are there stay.
        template: which config it gets.

    Returns:
        What was written, the config first.

    Raises:
        ConfigError: a file of the project is there already; nothing is written then.
        StoreError: the folder cannot be written to.
    """
    shipped = {f"{template}.yaml": "config.yaml", **_COMMON}
    there = [name for name in shipped.values() if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder}: has these already, and nothing there is overwritten: {', '.join(there)}. Name another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; expected a folder, or a name for a new one")
    source = files(__package__) / "files"
    for name, written in shipped.items():
        write_atomic(folder / written, (source / name).read_bytes())
    return [folder / written for written in shipped.values()]
