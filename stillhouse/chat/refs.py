"""Model refs: the strings by which configs name a model.

A ref is `embedded:NAME`, a local folder, or a Hugging Face id. Nothing here loads a model.
"""

import json
import re
from pathlib import Path
from typing import Final

from stillhouse.embedded import embedded_path, unknown_embedded_model
from stillhouse.errors import ConfigError
from stillhouse.store.fingerprint import digest, file_sha256
from stillhouse.types import JsonObject

NO_CODE: Final = {"trust_remote_code": False}
"""Passed to every `from_pretrained`: code that comes with a model is never run, without a question on the terminal."""
SAFE_WEIGHTS: Final = {**NO_CODE, "use_safetensors": True}
"""The same for loading weights: a pickle may hold code."""
GENERATION_FILE: Final = "generation_config.json"

_EMBEDDED: Final = "embedded:"
_LOCAL_STARTS: Final = ("/", "./", "../", "~")
_IDENTITY: Final = re.compile(r"(.+)@[0-9a-f]{16}")
_HUB_ID: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
# Files that decide a model's behaviour. Logs, metrics and the record of how a student was made do not.
_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".gguf", ".json", ".jinja", ".model", ".txt"})
_RECORDS: Final = frozenset({"student.json", "manifest.json"})


def resolve_model(ref: str) -> str:
    """Return a folder's path or a Hugging Face id, fit for `from_pretrained`.

    Raises ConfigError if `ref` is `embedded:NAME` with an unknown name, or looks like a path and is no folder.
    """
    if ref.startswith(_EMBEDDED):
        if (problem := unknown_embedded_model(ref)) is not None:
            raise ConfigError(f"model {problem}")
        return str(embedded_path(ref.removeprefix(_EMBEDDED)))
    if ref.startswith(_LOCAL_STARTS):
        folder = Path(ref).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"model {ref!r} is not a folder; expected a folder with config.json (or adapter_config.json), "
                f"'embedded:teacher', 'embedded:student' or a Hugging Face id"
            )
        return str(folder)
    return ref


def gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder, None where it holds none; raise ConfigError for several."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise ConfigError(f"{folder}: expected one GGUF file, saw {names}; put each into a folder of its own")
    return files[0] if files else None


def require_safetensors(adapter: Path) -> None:
    """Raise ConfigError unless an adapter's weights are safetensors, since peft would load a pickle as well."""
    if not (adapter / "adapter_model.safetensors").is_file():
        raise ConfigError(
            f"the adapter in {adapter} cannot be loaded: it has no adapter_model.safetensors, and weights in a pickle "
            "(adapter_model.bin) may hold code. Have peft write it again, with save_pretrained"
        )


def is_hub_id(ref: str) -> bool:
    """Return whether a ref names something on the Hugging Face Hub, which others can load too."""
    return _HUB_ID.fullmatch(ref) is not None and not Path(ref).is_dir()


def model_identity(ref: str) -> str:
    """Return `NAME@<16 hex digits>` from a local folder's bytes, so that retrained weights are another model.

    An adapter's base model is part of its identity. A Hugging Face id that is no folder here is returned as it is.
    """
    folder = Path(resolve_model(ref))
    if not folder.is_dir():
        return ref
    content: dict[str, str] = {
        path.name: file_sha256(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix in _SUFFIXES and path.name not in _RECORDS
    }
    base = _named_base(folder).get("base_model_name_or_path")
    if base is not None:
        content["base model"] = base if _IDENTITY.fullmatch(base) else model_identity(base)
    return f"{folder.name}@{digest(content)[:16]}"


def adapter_base(folder: Path) -> str | None:
    """Return the model ref of the base of the adapter in a folder; None when the folder holds no adapter.

    An exported adapter names a base that was a folder by its identity, and that is expected beside it; raises
    ConfigError where it is not.
    """
    base = _named_base(folder).get("base_model_name_or_path")
    if base is None or (identity := _IDENTITY.fullmatch(base)) is None:
        return base
    beside = folder.absolute().parent / identity[1]
    seen = model_identity(str(beside)) if beside.is_dir() else "nothing"
    if seen != base:
        raise ConfigError(
            f"{folder}: its adapter was trained over {base}, expected at {beside}, where {seen} is. Put that model "
            "there, or name its path in base_model_name_or_path of adapter_config.json"
        )
    return str(beside)


def base_revision(folder: Path) -> str | None:
    """Return the commit of the Hugging Face id that an adapter was trained over; None where it names none."""
    return _named_base(folder).get("revision")


def _named_base(folder: Path) -> JsonObject:
    config = folder / "adapter_config.json"
    return json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
