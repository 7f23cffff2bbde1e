"""Aliases of versions in MLflow's model registry."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field


def _that_is_free(alias: str) -> str:
    if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
        raise ValueError("reserved by MLflow; expected another, such as `candidate` or `champion`")
    return alias


Alias = Annotated[str, Field(pattern=r"^[\w-]+$"), AfterValidator(_that_is_free)]
"""Letters, digits, `_` and `-`, and not what MLflow itself points to versions with."""
