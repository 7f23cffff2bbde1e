"""One HTML file of trajectories without external resources.

Trajectories are compressed in chunks, which the page unpacks on demand; an index with one line for each comes first, so
that a list of thousands appears at once. Chunks are buffered in a temporary file until the index is complete, so that
memory holds one of them, whatever the number of rows.
"""

import base64
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import orjson

from stillhouse.chat.content import calls_of
from stillhouse.report.conversation import question
from stillhouse.report.environment import CONVERSATION_CSS, page_environment, style_sheet
from stillhouse.report.view.rows import ViewRow, read_view_rows
from stillhouse.report.view.sources import find_source
from stillhouse.store import exact_json
from stillhouse.store.artifacts import require_whole
from stillhouse.store.atomic import replaced_atomically

_FOLDER: Final = Path(__file__).parent
_SCRIPTS: Final = ("words.js", "data.js", "filters.js", "list.js", "reader.js", "app.js")
_CHUNK_BYTES: Final = 256 << 10
"""Uncompressed size: unpacks between two frames and still compresses well."""
_BASE64_BYTES: Final = 3 << 14
"""Read at once; a multiple of 3, so that base64 pieces can be joined."""
_QUESTION_CHARS: Final = 160
_PROMPT_CHARS: Final = 16
"""Of a prompt's id: enough to tell those of a page apart."""

COLUMNS: Final = (
    "id", "stage", "question", "outcome", "kept", "stop_reason", "tools", "score", "turns", "tool_calls", "tool_errors",
    "completion_tokens", "chars", "usd", "latency_s", "model", "tag", "prompt", "chunk",
    "place",
)  # fmt: skip
"""Columns of the index; `prompt` is equal for rows of one prompt, `chunk` and `place` locate the body."""


@dataclass(frozen=True, slots=True)
class WrittenPage:
    path: Path
    num_rows: int
    is_complete: bool
    """Whether all rows of the source are on the page."""


def write_page(
    path: Path, title: str, place: str, rows: Iterable[ViewRow], max_rows: int, *, reload_s: int | None = None
) -> WrittenPage:
    """Write the page of the first `max_rows` rows atomically; it says if there are more.

    With `reload_s` it reloads itself so often, unless somebody is reading further down or typing. Raises StoreError if
    it cannot be written, and what reading the rows raises.
    """
    with TemporaryFile() as index_file, TemporaryFile() as chunk_file, replaced_atomically(path) as work:
        remaining = iter(rows)
        packed = _Packed(index_file, chunk_file)
        for row in islice(remaining, max_rows):
            packed.add(row)
        packed.close()
        written = WrittenPage(path, packed.num_rows, next(remaining, None) is None)
        with work.open("w", encoding="utf-8") as file:
            file.writelines(
                page_environment(_FOLDER)
                .get_template("view.html.j2")
                .generate(
                    title=title,
                    place=place,
                    written=written,
                    reload_s=reload_s,
                    columns=" ".join(COLUMNS),
                    style=style_sheet(CONVERSATION_CSS, _FOLDER / "view.css"),
                    script="\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS),
                    index=packed.index(),
                    chunks=packed.chunks(),
                )
            )
    return written


@dataclass(slots=True)
class _Packed:
    """Compressed index and chunks as they grow."""

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
        # Both have `turns`: the number in the figures, the facts of each turn in the body.
        body = exact_json.dumps({**figures, **row.body})
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
        """Yield the index in base64, piece by piece."""
        self.index_file.seek(0)
        while piece := self.index_file.read(_BASE64_BYTES):
            yield base64.b64encode(piece).decode("ascii")

    def chunks(self) -> Iterator[str]:
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
    messages = row.body["messages"]
    values = {
        **row.body,
        **row.figures,
        "stage": row.stage,
        "question": question(messages, _QUESTION_CHARS),
        "outcome": row.outcome,
        "kept": row.kept,
        # As the model wrote them.
        "tools": list(dict.fromkeys(call.name or "(no name)" for message in messages for call in calls_of(message))),
        "score": row.score,
        "prompt": (row.body.get("prompt_id") or "")[:_PROMPT_CHARS] or None,
        "chars": num_bytes,
        "chunk": chunk,
        "place": place,
    }
    return [values[column] for column in COLUMNS]


def view_run(
    name: str, store_root: Path, output: Path | None, max_rows: int, *, reload_s: int | None = None
) -> WrittenPage:
    """Write the page of a run, an artifact's folder or a file; without `output` as `views/TITLE.html` in the store.

    Raises InputError if `name` means nothing, or what it means cannot be read; StoreError if the page cannot be
    written, or an artifact that it is made of is damaged.
    """
    source = find_source(name, store_root)
    for folder in dict.fromkeys(path.parent for path in (*(part.path for part in source.parts), *source.labels)):
        require_whole(folder)
    file_name = re.sub(r"[^\w.-]+", "-", source.title).strip("-.") or "trajectories"
    page = output or store_root / "views" / f"{file_name}.html"
    return write_page(page, source.title, source.place, read_view_rows(source), max_rows, reload_s=reload_s)
