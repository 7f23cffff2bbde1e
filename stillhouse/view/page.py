"""One HTML file of trajectories that needs nothing beside it.

Trajectories are compressed in chunks, which the page unpacks when it needs them; an index with a line for each comes
first, so that a list of thousands is there at once. Chunks wait in a temporary file until the index is complete: memory
holds one of them, whatever the number of rows.
"""

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import orjson

from stillhouse.report.conversation import question
from stillhouse.report.environment import CONVERSATION_CSS, page_environment, style_sheet
from stillhouse.store.atomic import replaced_atomically
from stillhouse.types import Message
from stillhouse.view.rows import ViewRow

_FOLDER: Final = Path(__file__).parent
_SCRIPTS: Final = ("words.js", "data.js", "filters.js", "list.js", "reader.js", "app.js")
_CHUNK_BYTES: Final = 256 << 10
"""Uncompressed: small enough to be unpacked between two frames, large enough to compress well."""
_BASE64_BYTES: Final = 3 << 14
"""Read at once; a multiple of 3, so that pieces of base64 join up."""
_QUESTION_CHARS: Final = 160

COLUMNS: Final = (
    "id", "stage", "question", "outcome", "kept", "stop_reason", "tools", "score", "turns", "tool_calls", "tool_errors",
    "completion_tokens", "chars", "usd", "latency_s", "model", "tag", "chunk", "place",
)  # fmt: skip
"""What the index knows of each trajectory; `chunk` and `place` say where its body is."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came onto a page."""

    num_rows: int
    is_whole: bool
    """Whether the source held no more rows."""


def write_page(path: Path, title: str, place: str, rows: Iterable[ViewRow], max_rows: int) -> Written:
    """Writes the page, whole or not at all.

    Args:
        path: the file.
        title: names the run.
        place: where it lies.
        rows: drawn one at a time.
        max_rows: rows shown; the page says where there are more.

    Raises:
        StoreError: it cannot be written.
        InputError: what reading the rows raises.
    """
    with TemporaryFile() as index_file, TemporaryFile() as chunk_file, replaced_atomically(path) as work:
        remaining = iter(rows)
        packed = _Packed(index_file, chunk_file)
        for row in islice(remaining, max_rows):
            packed.add(row)
        packed.close()
        written = Written(packed.num_rows, next(remaining, None) is None)
        with work.open("w", encoding="utf-8") as file:
            file.writelines(_render(title, place, packed, written))
    return written


@dataclass(slots=True)
class _Packed:
    """Index and chunks as they grow, compressed."""

    index_file: IO[bytes]
    chunk_file: IO[bytes]
    num_rows: int = 0
    _num_chunks: int = 0
    _bodies: list[bytes] = field(default_factory=list)
    _num_bytes: int = 0
    # 31: a gzip header, which the browser's DecompressionStream asks for.
    _gzip: Any = field(default_factory=lambda: zlib.compressobj(6, zlib.DEFLATED, 31))

    def add(self, row: ViewRow) -> None:
        figures = {**row.figures, "num_turns": row.figures["turns"], "score": row.score}
        # Both know `turns`: the body's are the facts of each, where there are any.
        body = orjson.dumps({**figures, **row.body})
        line = orjson.dumps(_index_line(row, len(body), self._num_chunks, len(self._bodies)))
        self.index_file.write(self._gzip.compress((b",\n" if self.num_rows else b"[") + line))
        self.num_rows += 1
        self._bodies.append(body)
        self._num_bytes += len(body)
        if self._num_bytes >= _CHUNK_BYTES:
            self._end_chunk()

    def close(self) -> None:
        if self._bodies:
            self._end_chunk()
        self.index_file.write(self._gzip.compress(b"]" if self.num_rows else b"[]") + self._gzip.flush())

    def index(self) -> Iterator[str]:
        """The index in base64, piece by piece."""
        self.index_file.seek(0)
        while piece := self.index_file.read(_BASE64_BYTES):
            yield base64.b64encode(piece).decode("ascii")

    def chunks(self) -> Iterator[str]:
        """Each chunk in base64."""
        self.chunk_file.seek(0)
        for line in self.chunk_file:
            yield line.decode("ascii").rstrip()

    def _end_chunk(self) -> None:
        squeezed = zlib.compress(b"[" + b",".join(self._bodies) + b"]", 6, 31)
        self.chunk_file.write(base64.b64encode(squeezed) + b"\n")
        self._num_chunks += 1
        self._bodies.clear()
        self._num_bytes = 0


def _index_line(row: ViewRow, num_bytes: int, chunk: int, place: int) -> list[Any]:
    body, figures = row.body, row.figures
    told = {
        **figures,
        "id": body["id"],
        "stage": row.stage,
        "question": question(body["messages"], _QUESTION_CHARS),
        "outcome": row.outcome,
        "kept": row.kept,
        "stop_reason": body["stop_reason"],
        "tools": _tools_used(body["messages"]),
        "score": row.score,
        "chars": num_bytes,
        "model": body["model"],
        "tag": body["tag"],
        "chunk": chunk,
        "place": place,
    }
    return [told[column] for column in COLUMNS]


def _tools_used(messages: list[Message]) -> list[str]:
    """Names of the tools called, distinct, as the model wrote them."""
    names: dict[str, None] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            function: Any = call.get("function") if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            names[name if isinstance(name, str) and name else "(no name)"] = None
    return list(names)


def _render(title: str, place: str, packed: _Packed, written: Written) -> Iterator[str]:
    style = style_sheet(CONVERSATION_CSS, _FOLDER / "view.css")
    script = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    template = page_environment(_FOLDER).get_template("view.html.j2")
    return template.generate(
        title=title,
        place=place,
        written=written,
        columns=" ".join(COLUMNS),
        style=style,
        script=script,
        index=packed.index(),
        chunks=packed.chunks(),
    )
