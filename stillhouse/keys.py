"""Keys by the names of their variables: in the environment, into which `.env` and what Prefect keeps are put."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dotenv.main import DotEnv

PLACES: Final[dict[str, str]] = {}
"""Where a variable was found that the environment lacked; of one that is nowhere, the place that was asked last."""


def read_env_file(keys: Collection[str] = ()) -> None:
    """Set what `.env` in the working directory holds and the environment does not; of `keys`, none is empty."""
    for name, value in DotEnv(".env", encoding="utf-8", override=False).dict().items():
        if value and not (os.environ.get(name) if name in keys else name in os.environ):
            os.environ[name], PLACES[name] = value, str(Path(".env").absolute())


def place_of(variable: str) -> str:
    return PLACES.get(variable, "the environment")


def unset(variable: str) -> str:
    """Return that a variable is not set, where it was looked for and what to do, as the part of an error."""
    file = Path(".env").absolute()
    state = "" if os.access(file, os.R_OK) else " (not readable)" if file.exists() else " (no such file)"
    kept = f", nor as {PLACES[variable]}" if variable in PLACES else ""
    return (
        f"the environment variable {variable} is not set, nor is it in {file}{state}{kept}. Put it into one of them (a "
        "worker keeps the environment that it was started with)"
    )
