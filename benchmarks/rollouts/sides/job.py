"""The job of every client, as a file, and the rows that it returns."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

TOOL_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks a cask up.",
            "parameters": {
                "type": "object",
                "properties": {"case": {"type": "string"}, "turn": {"type": "integer"}},
                "required": ["case", "turn"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("look_up", "look_up_slowly")
]


class Question(NamedTuple):
    """One prompt."""

    case: str
    """What the answer has to name."""
    text: str


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a client."""

    url: str
    folder: str
    """Where it keeps whatever lets it go on after a kill."""
    num_prompts: int
    concurrency: int
    """Requests that it may have in flight."""
    start: int | None = None
    """Requests that the engine has in flight at first; None leaves it at its default. Others start with all."""
    num_samples: int = 1
    max_tokens: int = 64
    padding: int = 0
    """Characters by which a prompt is longer."""
    tools: bool = False
    tool_s: float = 0.0
    """Time of a call of a tool; every other tool is asynchronous."""
    hanging_every: int = 0
    """Every so many cases a tool never returns; 0 has none."""
    client: Literal["direct", "openai"] = "direct"
    """How the engine asks: `direct`, or `openai` as it asks hosted endpoints."""
    keep_rows: bool = True
    """Write rows; without, the client drops each answer at once."""

    @property
    def rows_file(self) -> Path:
        """Where the rows go, one a line."""
        return Path(self.folder) / "answers.jsonl"

    def questions(self) -> Iterator[Question]:
        """The prompts, in order."""
        padding = " " + "lorem ipsum " * (self.padding // 12) if self.padding else ""
        for index in range(self.num_prompts):
            case = f"[case-{index:06d}]"
            yield Question(case, f"How many casks are in warehouse {case}?{padding}")

    def hangs(self, case: str) -> bool:
        """Whether a tool never returns for this case."""
        return self.hanging_every > 0 and int(case[6:12]) % self.hanging_every == 0

    def write(self, path: Path) -> None:
        """As a file for `load`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def load() -> Job:
    """The job whose file the command line names."""
    return Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def mark_ready(job: Job) -> None:
    """Notes what was spent on imports, which the CPU per request leaves out."""
    ready = {"cpu_s": time.process_time(), "at": time.time()}
    (Path(job.folder) / "ready.json").write_text(json.dumps(ready), encoding="utf-8")


def row(question: Question | tuple[str, str], answer: str | None) -> str:
    """A line of `rows_file`; without an answer the row counts as lost."""
    return json.dumps({"case": question[0], "answer": answer}) + "\n"
