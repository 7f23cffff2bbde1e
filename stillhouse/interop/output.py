"""The folder a conversion leaves: written beside its place, and put there whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import orjson

from stillhouse.config import PromptsConfig
from stillhouse.errors import ConfigError
from stillhouse.interop.conversion_report import CONFIG, PROMPTS, TRAJECTORIES, UNMAPPED, ConversionReport, Example
from stillhouse.interop.source_record import Unmapped
from stillhouse.prompts.row import parse_row
from stillhouse.store.fingerprint import digest
from stillhouse.types import JsonObject, Prompt, Trajectory

MARK: Final = "converted.json"
"""Says that a folder is what a conversion left, so that the next one may replace it."""
BY_DEFAULT: Final = PromptsConfig()
"""How rows are checked: as a config would that says nothing of verifiers."""
_CONFLICT: Final = "metadata differs from that of the same prompt in an earlier row, which stands"


class Output:
    """Writes the files of a conversion into `folder` and keeps the account. Files that stay empty are not written."""

    def __init__(self, folder: Path, account: ConversionReport) -> None:
        self.account = account
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._metadata: dict[str, str] = {}
        self._num_samples: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()

    def prompt(self, place: str, row: JsonObject) -> Prompt:
        """Writes a prompts row, unless its prompt is written already; the prompt in it.

        Raises:
            RowProblem: there is no prompt in the row.
        """
        prompt, beside = parse_row(row, BY_DEFAULT)
        about = digest([beside.expected_answer, beside.tag, beside.verifier, beside.metadata])[:16]
        known = self._metadata.setdefault(prompt.id, about)
        if prompt.id in self._num_samples:
            self.account.repeated_prompts += 1
            if known != about:
                self.unmapped(place, Unmapped(_CONFLICT, "metadata", row["metadata"]))
            return prompt
        self._num_samples[prompt.id] = 0
        self.account.prompts += 1
        self._write(PROMPTS, row)
        return prompt

    def next_sample(self, prompt: Prompt) -> int:
        """Which of the prompt's trajectories the next one is, from 0."""
        self._num_samples[prompt.id] += 1
        return self._num_samples[prompt.id] - 1

    def trajectory(self, trajectory: Trajectory) -> None:
        """Writes a trajectory."""
        self.account.trajectories += 1
        self._write(TRAJECTORIES, trajectory)

    def unmapped(self, place: str, found: Unmapped, *, leaves_out: bool = False) -> None:
        """Writes down what has no place here; `leaves_out` where that is a whole row."""
        self.account.note(found.reason, Example(place, found.key, found.value), leaves_out=leaves_out)
        self._write(UNMAPPED, {"place": place, **found._asdict()})

    def config(self, text: str) -> None:
        """Writes the config."""
        self.account.has_config = True
        (self._folder / CONFIG).write_text(text, encoding="utf-8")

    def mark(self) -> None:
        """Writes what the folder is; the last thing to do."""
        (self._folder / MARK).write_bytes(orjson.dumps(self.account.as_json(), option=orjson.OPT_INDENT_2))

    def _write(self, name: str, row: Any) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("wb")
        self._files[name].write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE, default=str))


def check_place(output: Path) -> None:
    """Refuses to write where something else is.

    Raises:
        ConfigError: `output` is there and is neither an empty folder nor what an earlier conversion left.
    """
    if not output.exists() or (output.is_dir() and ((output / MARK).is_file() or not any(output.iterdir()))):
        return
    kind = "a folder with other files in it" if output.is_dir() else "a file"
    raise ConfigError(
        f"--output {output} is {kind}; name a folder that is new or empty, or one that convert wrote before"
    )


def prompts_row(messages: list[Any], tools: list[str] | None, metadata: Mapping[str, Any]) -> JsonObject:
    """A row as `stillhouse.prompts` reads it."""
    row: JsonObject = {"messages": messages}
    if tools is not None:
        row["tools"] = tools
    return {**row, "metadata": dict(metadata)}
