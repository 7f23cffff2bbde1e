"""Records of a SQLite file, read page by page and without its trees.

What leads from the root of a table to a record may be damaged while the record is whole, and then SQLite's own reader
gives up. Every page that looks like one with records is taken for one, so what comes out has to be checked.

Format: https://www.sqlite.org/fileformat2.html, sections 1.3 (header), 1.6 (pages), 2.1 (records), 4.1 (WAL).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

Record = list[bytes | None]
"""Blobs and texts as bytes; None for a NULL, a number or what is damaged."""

_DEFAULT_PAGE_BYTES: Final = 4096
_PAGE_BYTES: Final = frozenset(1 << bits for bits in range(9, 17))
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_CELLS_AT: Final = {_TABLE_LEAF: 8, _INDEX_LEAF: 8, _INDEX_INTERIOR: 12}
_FILE_HEADER_BYTES: Final = 100
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_NUMBER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""By serial type."""


def read_records(path: Path) -> Iterator[Record]:
    """The records of all pages of a database and of the WAL beside it, in no order and some of them twice.

    Raises:
        OSError: a file cannot be read.
    """
    data = path.read_bytes()
    size = _page_bytes(data)
    file_pages = {number: data[start : start + size] for number, start in enumerate(range(0, len(data), size), start=1)}
    yield from _records_of(file_pages, size)
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists():
        yield from _records_of({**file_pages, **_wal_pages(wal.read_bytes(), size)}, size)


def user_version(path: Path) -> int:
    """`PRAGMA user_version` as the file's header has it; 0 where there is none."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(64)[60:64], "big")


def _page_bytes(data: bytes) -> int:
    size = int.from_bytes(data[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size in _PAGE_BYTES else _DEFAULT_PAGE_BYTES


def _wal_pages(data: bytes, size: int) -> dict[int, bytes]:
    pages = {}
    for start in range(_WAL_HEADER_BYTES, len(data) - size, _FRAME_HEADER_BYTES + size):
        body = start + _FRAME_HEADER_BYTES
        pages[int.from_bytes(data[start : start + 4], "big")] = data[body : body + size]
    return pages


def _records_of(pages: dict[int, bytes], size: int) -> Iterator[Record]:
    for number, page in pages.items():
        start = _FILE_HEADER_BYTES if number == 1 else 0
        kind = page[start] if len(page) == size else 0
        if kind not in _CELLS_AT:
            continue
        pointers = start + _CELLS_AT[kind]
        for index in range(int.from_bytes(page[start + 3 : start + 5], "big")):
            place = pointers + 2 * index
            try:
                yield _record(_payload(page, int.from_bytes(page[place : place + 2], "big"), kind, pages))
            # A cell that leads out of its page, or a length that cannot be.
            except (IndexError, KeyError, ValueError):
                continue


def _payload(page: bytes, offset: int, kind: int, pages: dict[int, bytes]) -> bytes:
    """The bytes of a record, gathered from its overflow pages."""
    usable = len(page)
    if kind == _INDEX_INTERIOR:
        offset += 4
    length, offset = _varint(page, offset)
    if kind == _TABLE_LEAF:
        _, offset = _varint(page, offset)
    if length > usable * len(pages):
        raise ValueError("longer than the file")
    most = usable - 35 if kind == _TABLE_LEAF else (usable - 12) * 64 // 255 - 23
    if length <= most:
        return page[offset : offset + length]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    local = local if local <= most else least
    parts = [page[offset : offset + local]]
    following = int.from_bytes(page[offset + local : offset + local + 4], "big")
    missing = length - local
    while missing > 0:
        overflow = pages[following]
        parts.append(overflow[4 : 4 + missing])
        following = int.from_bytes(overflow[:4], "big")
        missing -= usable - 4
    return b"".join(parts)


def _record(payload: bytes) -> Record:
    header_bytes, place = _varint(payload, 0)
    types = []
    while place < header_bytes:
        kind, place = _varint(payload, place)
        types.append(kind)
    record: Record = []
    offset = header_bytes
    for kind in types:
        length = (kind - 12) // 2 if kind >= 12 else _NUMBER_BYTES[kind]
        if offset + length > len(payload):
            raise ValueError("cut short")
        record.append(payload[offset : offset + length] if kind >= 12 else None)
        offset += length
    return record


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A number of SQLite's variable length, and where it ends."""
    value = 0
    for index in range(8):
        byte = data[offset + index]
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, offset + index + 1
    return (value << 8) | data[offset + 8], offset + 9
