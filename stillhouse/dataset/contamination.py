"""The label `contamination`: which evaluation rows a trajectory shares n-grams of words with.

Words are compared without case, punctuation and symbols, in n-grams of 8 as s1 (Muennighoff et al. 2025,
arXiv:2501.19393) and open-r1 do, and of 13 as GPT-3 does (Brown et al. 2020, arXiv:2005.14165, appendix C). Texts
shorter than the shortest n-gram are skipped: sums and short answers occur everywhere.

A row of 360 words costs 0.25 ms against an index of 200,000 n-grams.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.words import Hashes, ngram_hashes, normalised, word_hashes, words
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts.files import read_file
from stillhouse.store.fingerprint import digest, file_sha256
from stillhouse.types import JsonObject

MAX_ROWS: Final = 10
"""An n-gram in more rows of a set than this belongs to its template (`Answer with the letter of`) and is ignored. GPT-3
ignores n-grams in more than ten training documents for the same reason (Brown et al. 2020, arXiv:2005.14165, appendix
C)."""
_MAX_HITS: Final = 5
_SLOTS_PER_NGRAM: Final = 16
_ENDINGS: Final = (".txt", ".jsonl", ".ndjson", ".csv", ".parquet")
_BATCH_ROWS: Final = 1024


class ContaminationLabels:
    """The column `contamination`: for each input its hits, longest n-grams first, at most five.

    A hit is an evaluation row (`set`, `row` from 0) and a `part` of the trajectory (`prompt`, `answer`: all the model
    wrote, `tools`: what they returned) that share an n-gram of `ngram` words, the longest configured length they share;
    `text` is the first such n-gram. Among equal lengths, rows that share more n-grams come first.

    `sets` are files by name, `lengths` ascending. Raises ConfigError for an unknown suffix; InputError if a set cannot
    be read, or all of its rows are shorter than the shortest n-gram.
    """

    def __init__(self, sets: Mapping[str, str], lengths: Sequence[int]) -> None:
        self._rows: list[tuple[str, int]] = []
        texts: list[list[Hashes]] = []
        for name, file in sets.items():
            rows = _distinct_rows(name, file, lengths[0])
            self._rows += [(name, row) for row in rows]
            texts += rows.values()
        owners = [name for name, _ in self._rows]
        self._indexes = [NgramIndex(texts, owners, length) for length in reversed(lengths)]

    def __call__(self, inputs: Sequence[LabelInput]) -> dict[str, list[list[JsonObject]]]:
        return {"contamination": [self._hits(item) for item in inputs]}

    def _hits(self, item: LabelInput) -> list[JsonObject]:
        parts = {"prompt": item.prompt_text, "answer": item.sampled_text, "tools": item.tool_text}
        hits = [hit for part, text in parts.items() for hit in self._hits_in(part, text)]
        return [hit for _, hit in sorted(hits, key=itemgetter(0))[:_MAX_HITS]]

    def _hits_in(self, part: str, text: str) -> Iterator[tuple[tuple[int, int], JsonObject]]:
        """Yield each hit below what it is ranked by: its length, then the number of its n-grams."""
        text_words = words(normalised(text))
        hashes = word_hashes(text_words)
        matches: dict[int, tuple[int, int, int]] = {}
        for index in self._indexes:
            for start, row in index.matches(hashes):
                length, first, num_ngrams = matches.get(row, (index.length, start, 0))
                if length == index.length:
                    matches[row] = length, first, num_ngrams + 1
        for index_of_row, (length, first, num_ngrams) in sorted(matches.items()):
            name, number = self._rows[index_of_row]
            shared = " ".join(text_words[first : first + length])
            hit = {"set": name, "row": number, "part": part, "ngram": length, "text": shared}
            yield (-length, -num_ngrams), hit


def _distinct_rows(name: str, file: str, min_words: int) -> dict[int, list[Hashes]]:
    """Return word hashes of the texts of each row by its number; among rows with equal texts the first wins."""
    rows: dict[int, list[Hashes]] = {}
    seen: set[Any] = set()
    for row, texts in enumerate(read_set(name, file)):
        hashes = [text for text in (word_hashes(words(normalised(text))) for text in texts) if len(text) >= min_words]
        key = tuple(text.tobytes() for text in hashes)
        if hashes and key not in seen:
            seen.add(key)
            rows[row] = hashes
    if not rows:
        raise InputError(
            f"dataset.contamination.{name}: no row of {file} holds a text of {min_words} words, so nothing could "
            "be found; expected questions or solutions, or leave the set out"
        )
    return rows


class NgramIndex:
    """N-grams of `length` words and the rows that contain them.

    `rows` has the word hashes of each row's texts, the rows of a set together; `sets` the set of each row.
    """

    def __init__(self, rows: Sequence[Sequence[Hashes]], sets: Sequence[str], length: int) -> None:
        self.length = length
        no_hashes = np.empty(0, np.uint64)
        ngrams = [
            np.unique(np.concatenate([no_hashes, *(ngram_hashes(text, length) for text in texts)])) for texts in rows
        ]
        hashes = np.concatenate([no_hashes, *ngrams])
        owners = np.repeat(np.arange(len(rows)), [len(row) for row in ngrams])
        kept = _without_templates(hashes, np.unique(np.array(sets, str), return_inverse=True)[1][owners])
        order = kept[np.argsort(hashes[kept], kind="stable")]
        self._hashes, self._rows = hashes[order], owners[order]
        num_slots = 1 << (_SLOTS_PER_NGRAM * max(1, len(order)) - 1).bit_length()
        self._mask = np.uint64(num_slots - 1)
        self._slots = np.zeros(num_slots, bool)
        self._slots[self._hashes & self._mask] = True

    def matches(self, words: Hashes) -> Iterator[tuple[int, int]]:
        """Yield the start of every n-gram of `words` in the index, with the index of every row that contains it."""
        ngrams = ngram_hashes(words, self.length)
        # Hardly any n-gram is in the index, and a look at its slot costs a tenth of a search.
        starts = np.flatnonzero(self._slots[ngrams & self._mask])
        if not len(starts):
            return
        left = np.searchsorted(self._hashes, ngrams[starts], side="left")
        right = np.searchsorted(self._hashes, ngrams[starts], side="right")
        for start, first, end in zip(starts.tolist(), left.tolist(), right.tolist(), strict=True):
            for row in self._rows[first:end].tolist():
                yield start, row


def _without_templates(hashes: Hashes, sets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return indices of the hashes that at most `MAX_ROWS` rows of their set contain."""
    order = np.lexsort((hashes, sets))
    keys = np.stack((hashes[order], sets[order].astype(np.uint64)))
    opens = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)) if len(order) else np.empty(0, bool)
    sizes = np.diff(np.append(np.flatnonzero(opens), len(order)))
    return order[np.repeat(sizes <= MAX_ROWS, sizes)]


def read_set(name: str, file: str) -> Iterator[list[str]]:
    """Yield all texts of each row of an evaluation set, at any depth and in order, JSON in text included.

    Raises ConfigError if the file's suffix is unknown; InputError if the file is missing or one of its rows cannot be
    read: a set that is read in part would miss contamination by the rest.
    """
    path = _path(name, file)
    try:
        for row in _rows(path):
            yield list(_texts(row))
    except InputError as error:
        raise InputError(f"{_key(name)}: {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{_key(name)}: {path} cannot be read as {path.suffix[1:]}: {error}") from error


def sets_fingerprint(sets: Mapping[str, str]) -> str:
    """Return the hash of the bytes of all evaluation sets under their names, for a cache key; raise as `read_set`."""
    return digest({name: file_sha256(_path(name, file)) for name, file in sets.items()})


def _key(name: str) -> str:
    return f"dataset.contamination.{name}"


def _path(name: str, file: str) -> Path:
    path = Path(file).expanduser()
    if not path.is_file():
        seen = "is a folder" if path.is_dir() else "is missing"
        raise InputError(f"{_key(name)}: {path} {seen}; expected a file that ends in {', '.join(_ENDINGS)}")
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{_key(name)} = {file!r}: the ending tells no format; expected {', '.join(_ENDINGS)}")
    return path


def _rows(path: Path) -> Iterator[JsonObject]:
    ending = path.suffix.lower()
    if ending == ".parquet":
        # `pre_buffer` would keep row groups in memory once they are read.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()
        return
    for row in read_file(path, ending):
        if row.problem is not None:
            raise InputError(f"{row.place}: {row.problem}; mend or remove the line")
        yield row.value


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return (text for item in value for text in _texts(item))
    if not isinstance(value, str):
        return ()
    try:
        parsed = orjson.loads(value) if value.lstrip().startswith(("[", "{")) else None
    except orjson.JSONDecodeError:
        parsed = None
    return (value,) if parsed is None else _texts(parsed)
