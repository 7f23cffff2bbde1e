"""A dataset as one file, or as a folder in the layout of the Hugging Face Hub."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson
import pyarrow as pa

from stillhouse.dataset.read import SplitName, read_rows
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import ConfigError, InputError
from stillhouse.interop.export.chat_lines import jsonl_line, losses, openai_line, rnow_line, sharegpt_line
from stillhouse.interop.export.hub import split_files, write_hub_folder
from stillhouse.store import exact_json
from stillhouse.store.atomic import replaced_atomically
from stillhouse.types import JsonObject

Form = Literal["jsonl", "openai", "rnow", "sharegpt", "parquet", "hf"]
"""`jsonl`, `openai`, `rnow` and `sharegpt` are JSON lines, `parquet` one file of the dataset's columns, `hf` a folder.
`jsonl` is `openai` with each row's metadata."""

_LINES: Final[dict[str, Callable[[JsonObject], JsonObject]]] = {
    "jsonl": jsonl_line,
    "openai": openai_line,
    "rnow": rnow_line,
    "sharegpt": sharegpt_line,
}
_TOOLS: Final = "tools"


class Exported(NamedTuple):
    num_rows: int
    lost: Counter[str]
    """Messages that the form does not hold whole, by what it has no place for."""

    def __str__(self) -> str:
        left_out = ", ".join(f"{what} in {count:,}" for what, count in self.lost.items())
        return f"{self.num_rows} rows" + (
            f"; the form has no place for these, of messages: {left_out}" if left_out else ""
        )


def export_dataset(
    folder: Path, output: Path, form: Form, *, splits: Sequence[SplitName] = ("train", "validation")
) -> Exported:
    """Write rows of a dataset, the output of its stage, to `output`, in the order of `splits`.

    An existing file is replaced atomically. A folder of the form `hf` must not exist. Raises ConfigError if `output`
    does not fit `form`; InputError if `folder` is no dataset, or a row does not fit `form`; StoreError if there is
    no space or no permission.
    """
    check_output(output, form)
    if form == "hf":
        return Exported(write_hub_folder(folder, output, splits), Counter())
    with replaced_atomically(output) as work:
        if form == "parquet":
            return Exported(_write_table(folder, work, splits), Counter())
        return _write_lines(folder, work, splits, form)


def check_output(output: Path, form: Form) -> None:
    """Raise ConfigError if a folder is named for a file, or one that exists for the form `hf`."""
    if form == "hf" and output.exists():
        raise ConfigError(f"--output {output} is there already; name a folder that is not, or remove it")
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder; the form {form} is one file: name that")


def _write_lines(folder: Path, path: Path, splits: Sequence[SplitName], form: Form) -> Exported:
    has_metadata = form in ("jsonl", "rnow")
    mixed = mixed_columns(line for line, _ in _lines(folder, splits, form)) if has_metadata else frozenset[str]()
    lost: Counter[str] = Counter()
    num_rows = 0
    with path.open("wb") as file:
        for line, lost_here in _lines(folder, splits, form):
            file.write(exact_json.dumps(with_text(line, mixed) if mixed else line, option=orjson.OPT_APPEND_NEWLINE))
            lost += lost_here
            num_rows += 1
    return Exported(num_rows, lost)


def _lines(folder: Path, splits: Sequence[SplitName], form: Form) -> Iterator[tuple[JsonObject, Counter[str]]]:
    """Yield the lines of a dataset in `form`, and what each loses."""
    for row in chain.from_iterable(read_rows(folder, split) for split in splits):
        try:
            yield _LINES[form](row), losses(row, form)
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder}: row {row['id']} does not fit the form {form}: {type(error).__name__}: {error}; "
                "expected messages, calls and tools in the OpenAI form. Drop the row, or export as parquet"
            ) from error


def _write_table(folder: Path, path: Path, splits: Sequence[SplitName]) -> int:
    with TableWriter(path, COLUMNS) as writer:
        for _, file in split_files(folder, splits):
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group))
    return writer.num_rows


def mixed_columns(lines: Iterable[JsonObject]) -> frozenset[str]:
    """Return `tools` and the keys of `metadata` whose values no single type of Arrow holds."""
    types: dict[str, pa.Schema] = {}
    mixed: set[str] = set()
    for line in lines:
        for key, value in {**line["metadata"], _TOOLS: line.get(_TOOLS)}.items():
            try:
                schema = pa.schema([(key, pa.array([value]).type)])
                if types.setdefault(key, schema) != schema:
                    types[key] = pa.unify_schemas([types[key], schema], promote_options="permissive")
            except (pa.ArrowException, OverflowError):
                mixed.add(key)
    return frozenset(mixed)


def with_text(line: JsonObject, columns: Set[str]) -> JsonObject:
    """Return the line with the values of `columns` as text: JSON where they were none."""
    metadata = {key: _text(value) if key in columns else value for key, value in line["metadata"].items()}
    tools = {_TOOLS: _text(line[_TOOLS])} if _TOOLS in line and _TOOLS in columns else {}
    return {**line, "metadata": metadata, **tools}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)
