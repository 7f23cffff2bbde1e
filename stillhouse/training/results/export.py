"""Exports students to a folder or the Hugging Face Hub."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stillhouse.chat.refs import is_hub_id
from stillhouse.errors import ConfigError
from stillhouse.store.atomic import replaced_folder, write_atomic
from stillhouse.store.hub import push_folder
from stillhouse.training.results.adapter import ADAPTER_FILE, read_adapter
from stillhouse.training.results.card import write_card
from stillhouse.training.results.portable import make_portable
from stillhouse.training.results.record import MERGED_FOLDER, StudentRecord, read_record
from stillhouse.training.results.sections import public_name
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TEMPLATES: Final = "additional_chat_templates/*.jinja"
_STORE_MANIFEST: Final = "manifest.json"
_REPLACED: Final = ("*.safetensors*", "*.json", "*.jinja")
"""Files of an earlier upload to delete: a leftover adapter would be loaded over full weights."""


def export_student(
    folder: Path,
    output: Path,
    *,
    merge: bool,
    evaluations: Mapping[str, JsonObject] | None = None,
    license_id: str | None = None,
    copy: Callable[[str, str], Any] = shutil.copyfile,
) -> None:
    """Write a student to the new folder `output`, with a new card and a record without paths of this machine.

    With `merge` it has merged weights instead of the adapter; `copy` copies a file of the student to another path.

    Raises:
        ConfigError: `output` is there already, or there is no adapter to merge.
        InputError: `folder` holds no student.
        TrainingError: the merged weights differ from base and adapter.
        StoreError: no space or no permission.
    """
    if output.exists():
        raise ConfigError(f"--output {output} is there already; name a folder that is not, or remove it")
    read_record(folder)
    if merge and read_adapter(folder) is None:
        raise ConfigError(f"--merge: {folder} holds whole weights and no adapter; leave the option out")
    with replaced_folder(output) as work:
        if merge and not (folder / MERGED_FOLDER).is_dir():
            from stillhouse.training.results.write import fill_merged

            fill_merged(folder, work)
        else:
            source = (folder / MERGED_FOLDER if merge else folder).absolute()
            for path in sorted((*source.iterdir(), *source.glob(_TEMPLATES))):
                if path.is_file() and path.name != _STORE_MANIFEST:
                    target = work / path.relative_to(source)
                    target.parent.mkdir(exist_ok=True)
                    copy(str(path), str(target))
            make_portable(work)
        record = _without_paths(read_record(work))
        record.write(work)
        if (adapter := work / ADAPTER_FILE).is_file():
            named = json.loads(adapter.read_bytes()) | {"base_model_name_or_path": record.base}
            write_atomic(adapter, json.dumps(named, indent=2, sort_keys=True).encode())
        write_card(work, evaluations=evaluations, license_id=license_id)


def push_student(folder: Path, repository: str, *, private: bool, api: "HfApi") -> str:
    """Upload an exported student as one commit; return the address of the repository.

    Raises:
        ConfigError: nobody else could load the adapter's base.
        StoreError: the hub refuses, cannot be reached, or holds a public repository where a private one is wanted.
    """
    adapter = read_adapter(folder)
    if adapter is not None and not is_hub_id(adapter.base):
        raise ConfigError(
            f"{folder}: the base of the adapter is {adapter.base!r}, which is not on the Hugging Face Hub, so that "
            "nobody else could load it. Push the merged weights with --merge"
        )
    return push_folder(folder, repository, "model", private=private, replaces=_REPLACED, api=api)


def _without_paths(record: StudentRecord) -> StudentRecord:
    """Return the record with models in local folders named by their identity."""
    identity, before = record.config["student_ref"], record.before and _without_paths(record.before)
    base = public_name(record.base)
    if base != record.base:
        # An adapter that was continued has the base of the training before.
        base = identity if record.base == record.started_from else before.base if before else base
    return record.model_copy(update={"base": base, "started_from": identity, "before": before})
