"""Questions with their answers, as files that trainings read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.prompts.parse import PROMPT_SOURCE
from stillhouse.store import digest
from stillhouse.store.atomic import replaced_atomically, replaced_folder
from stillhouse.store.fingerprint import prompt_id
from stillhouse.store.records import write_jsonl
from stillhouse.types import JsonObject, Message, Prompt, PromptMetadata


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the check of its answer."""

    text: str
    pattern: str
    """Found in a right answer: an expression of the verifier `regex`."""
    source: str | None = None
    """Name of what it is drawn from, where there are several; routes and mixtures go by it."""

    @property
    def messages(self) -> list[Message]:
        """The conversation up to the answer."""
        return [{"role": "user", "content": self.text}]

    @property
    def prompt(self) -> Prompt:
        """To sample from; no tools."""
        return Prompt(prompt_id(self.messages, []), self.messages, [])

    @property
    def metadata(self) -> PromptMetadata:
        """Goes with `prompt`."""
        source = {} if self.source is None else {PROMPT_SOURCE: self.source}
        return PromptMetadata(self.prompt.id, self.pattern, None, "regex", source)


@dataclass(frozen=True, slots=True)
class PromptFiles:
    """Prompts and their metadata on disk."""

    prompts: Path
    metadata: Path


def write_questions(folder: Path, questions: Sequence[Question]) -> PromptFiles:
    """Files with the questions, each once, under a name that their content decides."""
    distinct = {question.prompt.id: question for question in questions}.values()
    facts = [[one.text, one.pattern, *([one.source] if one.source else [])] for one in distinct]
    name = digest(facts)[:16]
    files = PromptFiles(folder / f"{name}.prompts.jsonl", folder / f"{name}.metadata.jsonl")
    _write(files.metadata, [question.metadata for question in distinct])
    _write(files.prompts, [question.prompt for question in distinct])
    return files


def answered(question: str, answer: str) -> JsonObject:
    """A row to fine-tune on."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write_rows(folder: Path, rows: Iterable[JsonObject]) -> Path:
    """A file with the rows, under a name that their content decides."""
    listed = list(rows)
    path = folder / f"{digest(listed)[:16]}.rows.jsonl"
    _write(path, listed)
    return path


def write_dataset(folder: Path, rows: Iterable[JsonObject]) -> Path:
    """A dataset of the rows' messages and tools: learnt as they are, where rows of a file must not hold turns."""
    listed = list(rows)
    path = folder / f"{digest(listed)[:16]}.dataset"
    columns = [column for column in COLUMNS if column.name in ("id", "messages", "tools", "prompt_id", "tag")]
    if not path.exists():
        with replaced_folder(path) as work, TableWriter(work / "train.parquet", columns) as writer:
            for number, row in enumerate(listed):
                texts = {name: [orjson.dumps(one).decode() for one in row[name]] for name in ("messages", "tools")}
                asked = prompt_id(row["messages"][:1], [tool["function"]["name"] for tool in row["tools"]])
                writer.write({"id": f"{number}", "prompt_id": asked, "tag": None, **texts})
    return path


def _write(path: Path, rows: Sequence[Any]) -> None:
    """Leaves alone what is there: its name says what it holds, and another process may be reading it."""
    if not path.exists():
        with replaced_atomically(path) as work:
            write_jsonl(work, rows)
