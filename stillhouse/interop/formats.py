"""The table of formats: how each is detected and read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple

import yaml

from stillhouse.errors import ConfigError, InputError
from stillhouse.interop.chat_rows import (
    has_messages,
    is_rnow_row,
    is_roll_row,
    read_openai_row,
    read_rnow_row,
    read_roll_row,
)
from stillhouse.interop.evaluation_logs import (
    is_inspect_log,
    is_verifiers_trace,
    read_inspect_log,
    read_verifiers_trace,
)
from stillhouse.interop.rnow_rollouts import is_rollout, read_rollout
from stillhouse.interop.source_record import ReadRow
from stillhouse.interop.sources import files_of, read_rows
from stillhouse.interop.text_rows import is_sharegpt_row, read_alpaca_row, read_completion_row, read_sharegpt_row
from stillhouse.interop.traces import claude_code, codex, logs
from stillhouse.interop.traces.calls import read_call
from stillhouse.prompts.files import ENDINGS, SourceRow, suffix_of
from stillhouse.types import JsonObject

FormatName = Literal[
    "rnow-rollouts", "rnow-jsonl", "rnow-config", "roll-jsonl", "roll-config", "openai", "sharegpt",
    "alpaca", "completion", "inspect", "verifiers", "claude-code", "codex", "otel", "langfuse", "mlflow-traces",
    "openai-log",
]  # fmt: skip
_CONFIGS: Final[dict[Literal["rnow-config", "roll-config"], tuple[str, ...]]] = {
    "rnow-config": ("dataset_type",),
    "roll-config": (
        *("actor_train", "kd_objective", "rollout_batch_size", "sft_train", "student_pretrain", "student_train"),
        "train_env_manager",
    ),
}
"""Keys by which a config is known."""
_TABLES: Final = (".jsonl", ".ndjson", ".parquet", ".arrow")
_DATA: Final = (*_TABLES, ".json", ".csv", ".tsv")


class Format(NamedTuple):
    name: FormatName
    suffixes: tuple[str, ...]
    keys: str
    """Keys of its rows, for messages."""
    detects: Callable[[JsonObject], bool]
    """Return whether a row is most likely of this format; the first in the table wins."""
    read: ReadRow
    gather: Callable[[Iterable[Path]], Iterator[SourceRow]] | None = None
    """Yield what `read` takes, of many rows and files together; None where that is each row."""
    named: Callable[[JsonObject], bool] | None = None
    """Return whether a row can be read when the user names the format; None where it is as `detects` says."""

    def accepts(self, row: JsonObject) -> bool:
        """Return whether a row can be read when the user names the format."""
        return (self.named or self.detects)(row)


def _has(*keys: str) -> Callable[[JsonObject], bool]:
    return lambda row: row.keys() >= {*keys}


_JSON: Final = (".jsonl", ".ndjson", ".json")
ROW_FORMATS: Final = (
    Format("claude-code", _JSON, "sessionId and uuid", _has("sessionId", "uuid"), claude_code.read, claude_code.gather),
    Format("codex", _JSON, "timestamp and payload", _has("timestamp", "payload"), codex.read, codex.gather),
    Format("otel", _JSON, "resourceSpans", _has("resourceSpans"), read_call, logs.gather_otel),
    Format(
        "mlflow-traces", _DATA, "trace_id and spans, or info and data", logs.is_mlflow, read_call, logs.gather_mlflow
    ),
    Format("langfuse", _DATA, "traceId, type, input, output", logs.is_langfuse, read_call, logs.gather_langfuse),
    Format("openai-log", _JSON, "request and response", logs.is_openai, read_call, logs.gather_openai),
    Format("rnow-rollouts", (".json",), "conversation and completed", is_rollout, read_rollout),
    Format(
        "roll-jsonl",
        _TABLES,
        "messages as JSON text or prompt, and tag or ground_truth",
        is_roll_row,
        read_roll_row,
        named=lambda row: "messages" in row or "prompt" in row,
    ),
    Format(
        "rnow-jsonl",
        (".jsonl",),
        "messages, and rewards, docker or names of tools",
        is_rnow_row,
        read_rnow_row,
        named=lambda row: has_messages(row) or "text" in row,
    ),
    Format("verifiers", (".jsonl",), "nodes and task", is_verifiers_trace, read_verifiers_trace),
    Format("inspect", (".json",), "eval, status and samples", is_inspect_log, read_inspect_log),
    Format("sharegpt", _DATA, "conversations of from and value", is_sharegpt_row, read_sharegpt_row),
    Format(
        "alpaca",
        _DATA,
        "instruction and output",
        _has("instruction", "output"),
        read_alpaca_row,
        named=_has("instruction"),
    ),
    Format("completion", _DATA, "prompt and completion", _has("prompt", "completion"), read_completion_row),
    Format("openai", _DATA, "messages", has_messages, read_openai_row),
)


def read_config(path: Path, wanted: str) -> tuple[Literal["rnow-config", "roll-config"], JsonObject]:
    """Return format and content of the YAML file `path`.

    Raises ConfigError if it is not what `wanted` names; InputError if it cannot be read, or is of neither format.
    """
    try:
        body = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as YAML: {error}") from error
    if body is None:
        raise InputError(f"{path}: holds no key; expected some such as dataset_type or student_train")
    if not isinstance(body, dict):
        raise InputError(
            f"{path}: expected keys such as dataset_type or student_train, saw {type(body).__name__} {body!r:.60}"
        )
    body = {str(key): value for key, value in body.items()}
    matching = [name for name, known in _CONFIGS.items() if body.keys() & known]
    if wanted != "auto" and wanted not in matching:
        raise ConfigError(f"--from {wanted}: {path} {_seen(body)}{_looks_like(matching)}")
    if not matching:
        expected = "dataset_type of an rnow config, or student_train or actor_train of a ROLL one"
        raise InputError(f"{path}: {_seen(body)}; expected {expected}")
    return matching[0], body


def row_format(source: Path, wanted: str) -> tuple[Format, list[Path]]:
    """Return the format of the rows of a file or folder, and its files that are of it.

    Raises ConfigError if `wanted` does not fit, or a folder holds files of several formats; InputError if there is
    nothing to read, or it is of no known format.
    """
    files = files_of(source)
    formats = [one for one in ROW_FORMATS if wanted in ("auto", one.name)]
    suffixes = {suffix for one in formats for suffix in one.suffixes}
    readable = [path for path in files if suffix_of(path) in suffixes]
    if not readable:
        endings = ", ".join(sorted({path.suffix or path.name for path in files}))
        whose = "" if wanted == "auto" else f" as {wanted} has them"
        raise InputError(f"{source}: expected files of {', '.join(sorted(suffixes))}{whose}; saw {endings or 'none'}")
    kinds: dict[str, Format] = {}
    for suffix in ENDINGS:
        kind = _format_of([path for path in readable if suffix_of(path) == suffix], suffix, source, formats)
        if kind is not None:
            kinds.setdefault(kind.name, kind)
    if not kinds:
        known = "; ".join(f"{one.name} ({one.keys})" for one in formats)
        raise InputError(f"{source}: none of {len(readable)} files holds a row that is of a known format: {known}")
    if len(kinds) > 1:
        raise ConfigError(f"{source} holds files of several formats: {', '.join(kinds)}. Say which one by --from")
    (kind,) = kinds.values()
    return kind, [path for path in readable if suffix_of(path) in kind.suffixes]


def _format_of(paths: Sequence[Path], suffix: str, source: Path, formats: Sequence[Format]) -> Format | None:
    """Return the format of the first row that is of one; rows before it are left to whoever reads them."""
    problem = first = None
    for row in chain.from_iterable(map(read_rows, paths)):
        if row.problem is not None:
            problem = problem or row
            continue
        first = first or row.value
        for one in formats:
            if suffix in one.suffixes and (one.detects(row.value) or (len(formats) == 1 and one.accepts(row.value))):
                return one
    if first is None and problem is not None:
        raise InputError(f"{source}: no row can be read; {problem.place}: {problem.problem}")
    if first is None or len(formats) > 1:
        return None
    (one,) = formats
    alike = [other.name for other in ROW_FORMATS if other.detects(first)][:1]
    raise ConfigError(
        f"--from {one.name}: expected rows with {one.keys}; the first of {source} {_seen(first)}{_looks_like(alike)}"
    )


def _seen(row: JsonObject) -> str:
    return f"has the keys {', '.join(list(row)[:8]) or 'none'}{', ...' if len(row) > 8 else ''}"


def _looks_like(names: Sequence[str]) -> str:
    return f". It looks like {names[0]}: leave out --from, or name that" if names else ""
