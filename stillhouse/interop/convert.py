"""Conversion of foreign files into prompts, trajectories and a config, with a report of everything read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import yaml

from stillhouse.config import SamePrompt, ToolsConfig
from stillhouse.errors import InputError
from stillhouse.interop.conversion_report import ConversionReport, key_report
from stillhouse.interop.formats import ROW_FORMATS, Format, read_config, row_format
from stillhouse.interop.loss_keys import without_gaps
from stillhouse.interop.mapping import ConfigMapper
from stillhouse.interop.messages import called_tools
from stillhouse.interop.output import DEFAULTS, PROMPTS, TRAJECTORIES, OutputFolder, check_output
from stillhouse.interop.privacy import private_places
from stillhouse.interop.rnow_config import map_epochs, map_rnow
from stillhouse.interop.roll_config import map_roll
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, trajectory_of
from stillhouse.interop.sources import absolute_path, files_of, find_path, read_rows
from stillhouse.prompts.files import SourceRow
from stillhouse.prompts.row import RowProblem, parse_row
from stillhouse.store.atomic import replaced_folder
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Message, ToolSchema

_ABSENT: Final = "a data file that is not there: convert it by itself and name what comes of it in prompts.source"
_ROWS: Final = {"rnow-config": "rnow-jsonl", "roll-config": "roll-jsonl"}

MALFORMED: Final = "the row is malformed"
_FAILED: Final = "the rollout failed: left out without --include-failed"
_NOT_READ: Final = "a file of another kind: not read"
_PRIVATE: Final = "a conversation with private data of a kind that --drop-private names: left out"
_NO_SCHEMA: Final = "a tool without a schema: name the file that defines it by --tools"
_SEVERAL_TURNS: Final = "tokens of several turns together: usage is kept by turn"
_YAML: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Settings of a conversion, for what rows do not say."""

    include_failed: bool = False
    tools_file: Path | None = None
    """Python file whose functions under `@tool` were offered."""
    teacher: str | None = None
    """The model of rows that name none."""
    same_prompt: SamePrompt = "first"
    drop_private: tuple[str, ...] = ("secret",)
    """Kinds of private data whose conversations are left out, as `dataset.filters.drop_private` names them."""


def convert(
    source: Path, output: Path, form: str = "auto", options: ConvertOptions = ConvertOptions()
) -> ConversionReport:
    """Convert a foreign file, or a folder of one format, into prompts, trajectories, a config, and what is unmapped.

    `output` is a folder that is new, empty, or of an earlier conversion. `form` is a format of
    `stillhouse.interop.formats`; `auto` decides by the first row. Raises ConfigError if `form` does not fit, `output`
    holds other files, or the tools file does not load; InputError if nothing can be read or converted; StoreError if
    `output` cannot be written.
    """
    check_output(output)
    toolbox = None if options.tools_file is None else Toolbox.from_config(ToolsConfig(file=str(options.tools_file)))
    is_config = form.endswith("-config") or (form == "auto" and source.suffix.lower() in _YAML)
    name: str
    if is_config:
        if not source.is_file():
            raise InputError(f"{source}: there is no such file; expected the YAML of a config")
        name, body = read_config(source, form)
    else:
        row_form, files = row_format(source, form)
        name = row_form.name
    report = ConversionReport(name, str(source), options.same_prompt)
    with replaced_folder(output) as folder, OutputFolder(folder, report) as out:
        rows = RowsConverter(out, options, toolbox)
        if is_config:
            _convert_config(body, source, output, out, rows)
        else:
            rows.read_files(name, files, others=ROW_FORMATS if form == "auto" else ())
            for other in sorted({*files_of(source)} - {*files}):
                out.write_unmapped(str(other), Unmapped(_NOT_READ))
        _check(report)
        out.write_marker()
    return report


class RowsConverter:
    def __init__(self, out: OutputFolder, options: ConvertOptions, toolbox: Toolbox | None) -> None:
        self._out = out
        self._options = options
        self._toolbox = toolbox
        self._is_trace = False

    def read_files(self, form: str, files: Iterable[Path], others: Sequence[Format] = ()) -> None:
        """Convert rows in the format named `form`, and rows of another in the first of `others` that detects them."""
        (row_form,) = (one for one in ROW_FORMATS if one.name == form)
        self._is_trace = row_form.gather is not None
        files, report = list(files), self._out.report
        report.files += len(files)
        for row in (row_form.gather or _each_row)(files):
            report.rows += 1
            if row.problem is not None:
                self._leave_out(row.place, row.problem)
                continue
            try:
                record = _record(row_form, row.value, others)
                for conversation in record.conversations:
                    # Validates all of them first, so that no row is half written.
                    parse_row({"messages": conversation.messages}, DEFAULTS)
                written = [self._write(row.place, conversation) for conversation in record.conversations]
            except RowProblem as error:
                self._leave_out(row.place, str(error))
                continue
            report.rows_left_out += not any(written)
            for unmapped in record.unmapped:
                self._out.write_unmapped(row.place, unmapped, leaves_out=not record.conversations)

    def _leave_out(self, place: str, problem: str) -> None:
        self._out.report.rows_left_out += 1
        # What was seen may be the beginning of a secret.
        problem = problem.partition(", saw ")[0] if self._is_trace else problem
        self._out.write_unmapped(place, Unmapped(MALFORMED, None, problem), leaves_out=True)

    def _write(self, place: str, conversation: SourceConversation) -> bool:
        if conversation.failure is not None:
            self._out.report.failed += 1
            if not self._options.include_failed:
                failed = Unmapped(_FAILED, "error", conversation.failure["message"])
                self._out.write_unmapped(place, failed, leaves_out=True)
                return False
        if self._is_private(place, conversation):
            return False
        tools = {} if conversation.tools is None else {"tools": conversation.tools}
        row = {"messages": conversation.messages[: conversation.num_prompt], **tools, "metadata": conversation.metadata}
        sampled = conversation.messages[conversation.num_prompt :]
        prompt = self._out.write_prompt(place, row)
        if sampled or conversation.failure is not None:
            model = conversation.model or self._options.teacher or "unknown"
            schemas = self._schemas(place, conversation, sampled)
            trajectory = trajectory_of(conversation, prompt.id, self._out.num_samples[prompt.id], schemas, model)
            self._out.write_trajectory(trajectory)
            if conversation.usage and len(trajectory.turns) != 1:
                self._out.write_unmapped(place, Unmapped(_SEVERAL_TURNS, "usage", conversation.usage))
        return True

    def _is_private(self, place: str, conversation: SourceConversation) -> bool:
        """Return whether a conversation holds private data of a kind to drop; other kinds are put into its metadata."""
        dropped = {*self._options.drop_private}
        found = private_places(conversation, with_personal=self._is_trace or dropped > {"secret"})
        for kind in sorted(found.keys() & dropped):
            self._out.write_unmapped(place, Unmapped(_PRIVATE, kind, found[kind]), leaves_out=True)
        if kept := sorted(found.keys() - dropped):
            conversation.metadata = {**conversation.metadata, "private_data": kept}
        return bool(found.keys() & dropped)

    def _schemas(self, place: str, conversation: SourceConversation, sampled: list[Message]) -> list[ToolSchema]:
        """Return schemas of the tools offered: by default all tools of the file."""
        schemas = conversation.schemas
        if schemas is None:
            available = [] if self._toolbox is None else self._toolbox.schemas()
            names = conversation.tools
            schemas = [schema for schema in available if names is None or schema["function"]["name"] in names]
        offered = {schema["function"]["name"] for schema in schemas}
        for name in dict.fromkeys([*(conversation.tools or ()), *called_tools(sampled)]):
            if name not in offered:
                self._out.write_unmapped(place, Unmapped(_NO_SCHEMA, "tools", name))
        return schemas


def _each_row(files: Iterable[Path]) -> Iterable[SourceRow]:
    return chain.from_iterable(map(read_rows, files))


def _record(row_form: Format, row: JsonObject, others: Sequence[Format]) -> SourceRecord:
    """Return what a row holds, its conversations as trajectories can; raise RowProblem for a row of no known form."""
    forms = [row_form] if row_form.gather or row_form.accepts(row) else [one for one in others if one.detects(row)]
    if not forms:
        raise RowProblem(f"expected a row with {row_form.keys}, saw {row!r:.100}")
    try:
        record = forms[0].read(row)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise RowProblem(
            f"expected a row of {forms[0].name} with {forms[0].keys}: {type(error).__name__}: {error}; saw {row!r:.60}"
        ) from error
    for conversation in record.conversations:
        record.unmapped += without_gaps(conversation)
    record.conversations = [conversation for conversation in record.conversations if conversation.messages]
    return record


def _check(report: ConversionReport) -> None:
    if report.prompts or report.has_config:
        return
    reasons = ""
    for reason, entry in report.unmapped.items():
        place, example = entry.examples[0]
        reasons += f"\n  {entry.count} x {reason} ({place}: {example.value!r:.200})"
    raise InputError(
        f"{report.source}: none of {report.rows} rows of {report.form} could be converted; nothing was written:"
        f"{reasons}"
    )


def _convert_config(body: JsonObject, source: Path, output: Path, out: OutputFolder, rows: RowsConverter) -> None:
    """Convert the config in `source` and the data files it names; `output` is the final folder."""
    form = out.report.form
    mapper = ConfigMapper()
    data_files = (
        map_rnow(body, mapper, source.parent) if form == "rnow-config" else map_roll(body, mapper, source.parent)
    )
    existing = {name: path for name in data_files if (path := find_path(name, source.parent)) and path.is_file()}
    if existing:
        rows.read_files(_ROWS[form], list(existing.values()))
    for name in data_files:
        if name not in existing:
            mapper.skip(_ABSENT, "data", name)
    if out.report.prompts:
        mapper.set("prompts.source", absolute_path(PROMPTS, output))
    elif data_files:
        mapper.set("prompts.source", absolute_path(data_files[0], source.parent), "data", data_files[0])
    if form == "rnow-config":
        map_epochs(body, mapper, out.report.prompts)
    if out.report.needs_same_prompt:
        mapper.set("prompts.same_prompt", out.report.same_prompt)
    if out.report.trajectories and mapper.get("sft.enabled"):
        mapper.set("rollouts.trajectories_file", absolute_path(TRAJECTORIES, output))
    config = yaml.safe_dump(mapper.body(), sort_keys=False)
    rest = "unmapped.jsonl lists the rest." if mapper.unmapped else "nothing was left over."
    config = f"# What {source} says, as stillhouse convert reads it; {rest}\n{config}"
    out.write_config(config, *key_report(str(source), mapper.mapped, mapper.unmapped))
    for unmapped in mapper.unmapped:
        out.write_unmapped(str(source), unmapped)
