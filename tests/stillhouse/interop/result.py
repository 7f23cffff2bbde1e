"""The files of a conversion, read by those who will read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillhouse.config import PromptsConfig
from stillhouse.interop import ConversionReport, ConvertOptions, convert
from stillhouse.prompts import parse_prompts
from stillhouse.prompts.parse import ParsedPrompts
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.types import JsonObject, Trajectory


class Result:
    """Of a source, converted to `out` beside it unless `output` is another folder."""

    def __init__(self, source: Path, form: str = "auto", output: Path | None = None, **options: Any) -> None:
        folder = output or source.parent / "out"
        self.report: ConversionReport = convert(source, folder, form, ConvertOptions(**options))
        self.loaded: ParsedPrompts = parse_prompts(PromptsConfig(source=str(folder / "prompts.jsonl")))
        self.trajectories: list[Trajectory] = _if_there(folder / "trajectories.jsonl", read_trajectories)
        self.unmapped: list[JsonObject] = _if_there(folder / "unmapped.jsonl", read_jsonl)
        known = {prompt.id for prompt in self.loaded.prompts}
        assert {trajectory.prompt_id for trajectory in self.trajectories} <= known

    @property
    def beside(self) -> Any:
        """Metadata of the only prompt."""
        (beside,) = self.loaded.metadata.values()
        return beside

    @property
    def trajectory(self) -> Trajectory:
        """The only one."""
        (trajectory,) = self.trajectories
        return trajectory

    def listed(self, key: str | None) -> list[Any]:
        return [row["value"] for row in self.unmapped if row["key"] == key]


def _if_there(file: Path, read: Callable[[Path], Any]) -> list[Any]:
    return list(read(file)) if file.exists() else []
