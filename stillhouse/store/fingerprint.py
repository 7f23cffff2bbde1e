"""Content hashes: equal content, equal fingerprint, in any process and on any machine.

Only JSON is hashed. A set, a tensor or a live object has no stable form and is refused instead of hashed by its `repr`.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stillhouse.types import Message

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """Return `value` as JSON with sorted keys and no spaces.

    Raises TypeError if it holds something JSON does not have; ValueError if it holds NaN or an infinity.
    """
    return _ENCODER.encode(value).encode("utf-8", errors="surrogatepass")


def digest(value: Any) -> str:
    """Return the SHA-256 of `canonical_json(value)`, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def prompt_id(messages: Sequence[Message], tools: Sequence[str] | None) -> str:
    """Return a prompt's identity: its messages and the names of its tools, nothing else."""
    return digest({"messages": list(messages), "tools": None if tools is None else sorted(tools)})


def variant_id(prompt: str, number: int) -> str:
    """Return the id of the prompt `prompt` with its metadata number `number`, from 0, where several are kept apart.

    It does not depend on the metadata, so that editing them costs no rollout.
    """
    return f"{prompt}-{number}" if number else prompt


def without_variant(prompt: str) -> str:
    """Return the id that the variants of a prompt have in common."""
    return prompt.partition("-")[0]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unit_interval(*parts: str | int) -> float:
    """Return a number in [0, 1) that depends on `parts` alone, so that a split is stable when rows are added."""
    return int(digest(list(parts))[:13], 16) / 16**13
