"""The label `contamination`: which evaluation rows a trajectory shares n-grams of words with.

Words are compared without case, punctuation and symbols, in n-grams of 8 as s1 (Muennighoff et al. 2025,
arXiv:2501.19393) and open-r1 do, and of 13 as GPT-3 does (Brown et al. 2020, arXiv:2005.14165, appendix C). Texts
shorter than the shortest n-gram are skipped: sums and short answers occur everywhere.

A row of 360 words costs 0.25 ms against an index of 200,000 n-grams.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stillhouse.config import ContaminationConfig
from stillhouse.dataset.evaluation_sets import read_set
from stillhouse.dataset.labelling.inputs import LabelInput
from stillhouse.dataset.words import Hashes, normalised, run_hashes, word_hashes, words
from stillhouse.errors import ConfigError, InputError
from stillhouse.types import JsonObject

_MOST_HITS: Final = 5


class _Hit(NamedTuple):
    row: int
    part: str
    ngram: int
    text: str
    num_runs: int


class ContaminationLabels:
    """Labels inputs with the evaluation rows they share words with.

    Args:
        config: The sets and the lengths of runs.

    Raises:
        ConfigError: There are sets, but no lengths; or a file's ending tells no format.
        InputError: A set cannot be read, or none of its rows has as many words as the shortest run.
    """

    def __init__(self, config: ContaminationConfig) -> None:
        lengths = sorted(set(config.ngrams), reverse=True)
        if config.sets and (not lengths or lengths[-1] < 1):
            raise ConfigError(
                f"dataset.contamination.ngrams = {list(config.ngrams)}: expected lengths of 1 and up, such as [8, 13]"
            )
        self._rows: list[EvaluationRow] = []
        texts: list[list[Hashes]] = []
        for name, file in config.sets.items():
            read = _distinct_rows(name, file, lengths[-1])
            self._rows += [EvaluationRow(name, row) for row in read]
            texts += read.values()
        sets = [row.set for row in self._rows]
        self._indexes = [NgramIndex(texts, sets, length) for length in lengths]

    def __call__(self, inputs: Sequence[LabelInput]) -> dict[str, list[list[JsonObject]]]:
        """The column `contamination`: for each item its hits, those with the longest runs first, at most five.

        A hit is an evaluation row (`set`, `row` from 0) and a `part` of the trajectory (`prompt`, `answer`: all the
        model wrote, `tools`: what they returned) that share a run of `ngram` words, the longest length looked for of
        which they share any; `text` is the first such run. Of equal lengths, rows that share more runs come first.
        """
        return {"contamination": [self._hits(item) for item in inputs]}

    def _hits(self, item: LabelInput) -> list[JsonObject]:
        parts = {"prompt": item.prompt_text, "answer": item.sampled_text, "tools": item.tool_text}
        hits = [hit for part, text in parts.items() for hit in self._hits_in(part, text)]
        hits.sort(key=lambda hit: (-hit.ngram, -hit.num_runs))
        return [
            {**self._rows[hit.row]._asdict(), "part": hit.part, "ngram": hit.ngram, "text": hit.text}
            for hit in hits[:_MOST_HITS]
        ]

    def _hits_in(self, part: str, text: str) -> list[_Hit]:
        spelled = words(normalised(text))
        hashes = word_hashes(spelled)
        found: dict[int, tuple[int, int, int]] = {}
        for index in self._indexes:
            for start, row in index.overlaps(hashes):
                length, first, num_runs = found.get(row, (index.length, start, 0))
                if length == index.length:
                    found[row] = length, first, num_runs + 1
        return [
            _Hit(row, part, length, " ".join(spelled[first : first + length]), num_runs)
            for row, (length, first, num_runs) in sorted(found.items())
        ]


def _distinct_rows(name: str, file: str, shortest: int) -> dict[int, list[Hashes]]:
    """Word hashes of the texts of each row by its number; of rows with equal texts, the first."""
    rows: dict[int, list[Hashes]] = {}
    seen: set[Any] = set()
    for row, texts in enumerate(read_set(name, file)):
        hashes = [found for text in texts if len(found := word_hashes(words(normalised(text)))) >= shortest]
        key = tuple(found.tobytes() for found in hashes)
        if hashes and key not in seen:
            seen.add(key)
            rows[row] = hashes
    if not rows:
        raise InputError(
            f"dataset.contamination.sets.{name}: no row of {file} holds a text of {shortest} words, so nothing could "
            "be found; expected questions or solutions, or lower dataset.contamination.ngrams"
        )
    return rows


MOST_ROWS: Final = 10
"""A run of words in more rows of a set than this is its template (`Answer with the letter of`), and no sign that any of
them was seen. GPT-3 leaves out runs in more than ten training documents for the same reason (Brown et al. 2020,
arXiv:2005.14165, appendix C)."""
_SLOTS_PER_RUN: Final = 16


class EvaluationRow(NamedTuple):
    """A row of an evaluation set."""

    set: str
    row: int
    """Its number in the file, from 0, blank lines not counted."""


class Overlap(NamedTuple):
    """A run of words of a text that an evaluation row holds as well."""

    start: int
    """Place of the run's first word in the text."""
    row: int
    """Place of the row in the list the index was made of."""


class NgramIndex:
    """Runs of `length` words and the rows that hold them.

    Args:
        rows: Word hashes of the texts of each row, the rows of a set together; rows with equal texts count once.
        sets: For each row the set it belongs to.
        length: Words of a run.
    """

    def __init__(self, rows: Sequence[Sequence[Hashes]], sets: Sequence[str], length: int) -> None:
        self.length = length
        runs = [_distinct([run_hashes(text, length) for text in texts]) for texts in rows]
        hashes = np.concatenate([np.empty(0, np.uint64), *runs])
        owners = np.repeat(np.arange(len(rows)), [len(found) for found in runs])
        kept = _without_templates(hashes, np.unique(np.array(sets, str), return_inverse=True)[1][owners])
        order = kept[np.argsort(hashes[kept], kind="stable")]
        self._hashes, self._rows = hashes[order], owners[order]
        num_slots = 1 << (_SLOTS_PER_RUN * max(1, len(order)) - 1).bit_length()
        self._mask = np.uint64(num_slots - 1)
        self._slots = np.zeros(num_slots, bool)
        self._slots[self._hashes & self._mask] = True

    def __len__(self) -> int:
        return len(self._hashes)

    def overlaps(self, words: Hashes) -> Iterator[Overlap]:
        """Every run of `words` that is in the index, with every row that holds it."""
        runs = run_hashes(words, self.length)
        # Hardly any run is in the index; a look at its slot, a tenth as dear as a search, settles most.
        starts = np.flatnonzero(self._slots[runs & self._mask])
        if not len(starts):
            return
        left = np.searchsorted(self._hashes, runs[starts], side="left")
        right = np.searchsorted(self._hashes, runs[starts], side="right")
        for start, first, end in zip(starts.tolist(), left.tolist(), right.tolist(), strict=True):
            for row in self._rows[first:end].tolist():
                yield Overlap(start, row)


def _distinct(runs: Sequence[Hashes]) -> Hashes:
    return np.unique(np.concatenate(runs)) if runs else np.empty(0, np.uint64)


def _without_templates(hashes: Hashes, sets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places of the hashes that at most `MOST_ROWS` rows of their set hold."""
    order = np.lexsort((hashes, sets))
    keys = np.stack((hashes[order], sets[order].astype(np.uint64)))
    opens = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)) if len(order) else np.empty(0, bool)
    sizes = np.diff(np.append(np.flatnonzero(opens), len(order)))
    return order[np.repeat(sizes <= MOST_ROWS, sizes)]
