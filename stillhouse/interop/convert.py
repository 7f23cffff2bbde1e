"""Conversion of foreign files into prompts, trajectories and a config, with a report of everything read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from stillhouse.config import ToolsConfig
from stillhouse.errors import InputError
from stillhouse.interop.conversion_report import ConversionReport
from stillhouse.interop.formats import ROW_FORMATS, Format, config_body, config_format, row_format
from stillhouse.interop.mapping import ConfigMapper
from stillhouse.interop.messages import called_tools
from stillhouse.interop.output import BY_DEFAULT, PROMPTS, TRAJECTORIES, Output, check_place, prompts_row
from stillhouse.interop.rnow_config import map_rnow
from stillhouse.interop.roll_config import map_roll
from stillhouse.interop.source_record import Conversation, Unmapped, trajectory_of
from stillhouse.interop.sources import files_of, read_rows
from stillhouse.prompts.row import RowProblem, parse_row
from stillhouse.store.atomic import replaced_folder
from stillhouse.tools import Toolbox
from stillhouse.types import Message, ToolSchema

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


MALFORMED: Final = "the row is malformed"
_FAILED: Final = "the rollout failed: left out without --include-failed"
_NOT_READ: Final = "a file of another kind: not read"
_NO_SCHEMA: Final = "a tool without a schema: name the file that defines it by --tools"
_SEVERAL_TURNS: Final = "tokens of several turns together: usage is kept by turn"
_YAML: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What the user may say about the rows."""

    include_failed: bool = False
    """Take in rollouts that failed, as failed trajectories."""
    tools_file: Path | None = None
    """Python file whose functions under `@tool` were offered."""
    teacher: str | None = None
    """The model that wrote what no row names a model for."""


def convert(
    source: Path, output: Path, form: str = "auto", options: ConvertOptions = ConvertOptions()
) -> ConversionReport:
    """Reads foreign files and replaces the folder `output` by prompts, trajectories, a config, and what has no place.

    Args:
        source: a file, or a folder of files of one format.
        output: a folder that is new, empty, or of an earlier conversion.
        form: name of a format, as `stillhouse.interop.formats` has them; `auto` decides by the first row.
        options: what the rows do not say.

    Raises:
        ConfigError: `form` does not fit, `output` holds something else, or the tools file does not load.
        InputError: there is nothing to read, or nothing of it could be converted.
        StoreError: `output` cannot be written.
    """
    check_place(output)
    toolbox = None if options.tools_file is None else Toolbox.from_config(ToolsConfig(file=str(options.tools_file)))
    is_config = form.endswith("-config") or (form == "auto" and source.suffix.lower() in _YAML)
    if is_config:
        if not source.is_file():
            raise InputError(f"{source}: there is no such file; expected the YAML of a config")
        account = ConversionReport(config_format(source, form), str(source))
        row_form = None
    else:
        row_form, files = row_format(source, form)
        account = ConversionReport(row_form.name, str(source))
    with replaced_folder(output) as folder, Output(folder, account) as out:
        rows = RowsConverter(out, options, toolbox)
        if row_form is None:
            write_config(source, output, out, rows.read_files)
        else:
            rows.read_files(row_form.name, files)
            for other in sorted({*files_of(source)} - {*files}):
                out.unmapped(str(other), Unmapped(_NOT_READ))
        _check(account)
        out.mark()
    return account


class RowsConverter:
    """Writes what the rows of foreign files hold."""

    def __init__(self, out: Output, options: ConvertOptions, toolbox: Toolbox | None) -> None:
        self._out = out
        self._options = options
        self._toolbox = toolbox

    def read_files(self, form: str, files: Iterable[Path]) -> None:
        """Converts every row of `files`, which are of the row format called `form`."""
        (row_form,) = (one for one in ROW_FORMATS if one.name == form)
        for path in files:
            self._out.account.files += 1
            self._read_file(row_form, path)

    def _read_file(self, row_form: Format, path: Path) -> None:
        account = self._out.account
        for row in read_rows(path):
            account.rows += 1
            if row.problem is not None:
                self._leave_out(row.place, row.problem)
                continue
            try:
                found = row_form.read(row.value)
                for conversation in found.conversations:
                    # Its own form first, so that half a row is never written.
                    parse_row({"messages": conversation.messages}, BY_DEFAULT)
                written = [self._write(row.place, conversation) for conversation in found.conversations]
            except RowProblem as error:
                self._leave_out(row.place, str(error))
                continue
            account.rows_left_out += not any(written)
            for unmapped in found.unmapped:
                self._out.unmapped(row.place, unmapped, leaves_out=not found.conversations)

    def _leave_out(self, place: str, problem: str) -> None:
        self._out.account.rows_left_out += 1
        self._out.unmapped(place, Unmapped(MALFORMED, None, problem), leaves_out=True)

    def _write(self, place: str, conversation: Conversation) -> bool:
        if conversation.failure is not None:
            self._out.account.failed += 1
            if not self._options.include_failed:
                failed = Unmapped(_FAILED, "error", conversation.failure["message"])
                self._out.unmapped(place, failed, leaves_out=True)
                return False
        asked, said = conversation.messages[: conversation.num_prompt], conversation.messages[conversation.num_prompt :]
        prompt = self._out.prompt(place, prompts_row(asked, conversation.tools, conversation.metadata))
        if said or conversation.failure is not None:
            model = conversation.model or self._options.teacher or "unknown"
            schemas = self._schemas(place, conversation, said)
            trajectory = trajectory_of(conversation, prompt.id, self._out.next_sample(prompt), schemas, model)
            self._out.trajectory(trajectory)
            if conversation.usage and len(trajectory.turns) != 1:
                self._out.unmapped(place, Unmapped(_SEVERAL_TURNS, "usage", conversation.usage))
        return True

    def _schemas(self, place: str, conversation: Conversation, said: list[Message]) -> list[ToolSchema]:
        """Schemas of the tools offered; None among a prompt's tools offers every one of the file."""
        schemas = conversation.schemas
        if schemas is None:
            known = [] if self._toolbox is None else self._toolbox.schemas()
            names = conversation.tools
            schemas = [schema for schema in known if names is None or schema["function"]["name"] in names]
        offered = {schema["function"]["name"] for schema in schemas}
        for name in dict.fromkeys([*(conversation.tools or ()), *called_tools(said)]):
            if name not in offered:
                self._out.unmapped(place, Unmapped(_NO_SCHEMA, "tools", name))
        return schemas


def _check(account: ConversionReport) -> None:
    if account.prompts or account.has_config:
        return
    told = [
        f"{entry.count} x {reason} ({entry.examples[0].place}: {entry.examples[0].value!r:.200})"
        for reason, entry in account.unmapped.items()
    ]
    raise InputError(
        f"{account.source}: none of {account.rows} rows of {account.form} could be converted; nothing was written:\n  "
        + "\n  ".join(told)
    )
