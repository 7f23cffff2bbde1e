"""The output folder of a conversion and its files."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from stillhouse.config import PromptsConfig
from stillhouse.dataset.labelling.privacy import has_secret
from stillhouse.errors import ConfigError
from stillhouse.interop.conversion_report import CONFIG, KEYS, PROMPTS, TRAJECTORIES, UNMAPPED, ConversionReport
from stillhouse.interop.privacy import plain_text
from stillhouse.interop.source_record import Unmapped
from stillhouse.prompts.row import parse_row
from stillhouse.store import exact_json
from stillhouse.store.fingerprint import digest, variant_id
from stillhouse.types import JsonObject, Prompt, Trajectory

MARKER: Final = "converted.json"
"""Marks a folder as the output of a conversion, which the next one may replace."""
DEFAULTS: Final = PromptsConfig()
"""Rows are checked under the default config."""
_CONFLICT: Final = "metadata differs from an earlier row's for the same prompt, which stands"


class OutputFolder:
    """Writes the files of a conversion into `folder` and counts them in `report`; empty files are not created."""

    def __init__(self, folder: Path, report: ConversionReport) -> None:
        self.report = report
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._metadata_hashes: dict[str, list[str]] = {}
        """Of each prompt, in the order of its variants."""
        self.num_samples: dict[str, int] = {}
        """Trajectories by the id of their prompt."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()

    def write_prompt(self, place: str, row: JsonObject) -> Prompt:
        """Write a prompts row, unless its prompt is written already; return the prompt, which may be a variant.

        Rows that are to be merged are all written: whoever reads the file merges them. Raises RowProblem if there is no
        prompt in the row.
        """
        prompt, metadata = parse_row(row, DEFAULTS)
        fingerprint = digest([metadata.expected_answer, metadata.tag, metadata.verifier, metadata.metadata])[:16]
        known = self._metadata_hashes.setdefault(prompt.id, [])
        same_prompt, is_new = self.report.same_prompt, not known
        if fingerprint not in known:
            self.report.conflicting_prompts += not is_new
            if is_new or same_prompt != "first":
                known.append(fingerprint)
                self._write(PROMPTS, row)
            else:
                self.write_unmapped(place, Unmapped(_CONFLICT, "metadata", row["metadata"]))
        if same_prompt == "keep":
            prompt = replace(prompt, id=variant_id(prompt.id, known.index(fingerprint)))
        is_written = prompt.id in self.num_samples
        self.report.repeated_prompts += is_written
        self.report.prompts += not is_written
        self.num_samples.setdefault(prompt.id, 0)
        return prompt

    def write_trajectory(self, trajectory: Trajectory) -> None:
        self.report.trajectories += 1
        self.num_samples[trajectory.prompt_id] += 1
        self._write(TRAJECTORIES, trajectory)

    def write_unmapped(self, place: str, unmapped: Unmapped, *, leaves_out: bool = False) -> None:
        """Append what cannot be mapped, except a secret; `leaves_out` if that is a whole row."""
        if has_secret(plain_text(unmapped.value)):
            unmapped = unmapped._replace(value="not shown: it holds a secret")
        self.report.add_unmapped(place, unmapped, leaves_out=leaves_out)
        self._write(UNMAPPED, {"place": place, **unmapped._asdict()})

    def write_config(self, config: str, keys: str, key_counts: str) -> None:
        """Write config.yaml and the page on its keys, whose counts are kept for the summary."""
        self.report.has_config, self.report.key_counts = True, key_counts
        (self._folder / CONFIG).write_text(config, encoding="utf-8")
        (self._folder / KEYS).write_text(keys, encoding="utf-8")

    def write_marker(self) -> None:
        """Write the marker, after all other files."""
        (self._folder / MARKER).write_bytes(exact_json.dumps(self.report.as_json(), option=orjson.OPT_INDENT_2))

    def _write(self, name: str, row: Any) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("wb")
        self._files[name].write(exact_json.dumps(row, option=orjson.OPT_APPEND_NEWLINE, default=str))


def check_output(output: Path) -> None:
    """Raise ConfigError unless `output` is new, an empty folder, or the output of an earlier conversion."""
    if not output.exists() or (output.is_dir() and ((output / MARKER).is_file() or not any(output.iterdir()))):
        return
    kind = "a folder with other files in it" if output.is_dir() else "a file"
    raise ConfigError(
        f"--output {output} is {kind}; name a folder that is new or empty, or one that convert wrote before"
    )
