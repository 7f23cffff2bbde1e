"""The label `contamination`: which evaluation rows a trajectory shares runs of words with.

Words are compared without case, punctuation and symbols, in runs of 8 as s1 (Muennighoff et al. 2025,
arXiv:2501.19393) and open-r1 do, and of 13 as GPT-3 does (Brown et al. 2020, arXiv:2005.14165, appendix C). A text of
fewer words than the shortest run is not looked for: sums and short answers occur everywhere.

A row of 360 words costs 0.25 ms beside an index of 200,000 runs.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from stillhouse.config import ContaminationConfig
from stillhouse.dataset.contamination.ngrams import EvaluationRow, NgramIndex
from stillhouse.dataset.contamination.sets import read_set
from stillhouse.dataset.labelling.subject import Subject
from stillhouse.dataset.words import Hashes, normalised, word_hashes, words
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
    """Labels subjects with the evaluation rows they share words with.

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

    def __call__(self, subjects: Sequence[Subject]) -> dict[str, list[list[JsonObject]]]:
        """The column `contamination`: for each subject its hits, those with the longest runs first, at most five.

        A hit is an evaluation row (`set`, `row` from 0) and a `part` of the trajectory (`prompt`, `answer`: all the
        model wrote, `tools`: what they returned) that share a run of `ngram` words, the longest length looked for of
        which they share any; `text` is the first such run. Of equal lengths, rows that share more runs come first.
        """
        return {"contamination": [self._hits(subject) for subject in subjects]}

    def _hits(self, subject: Subject) -> list[JsonObject]:
        parts = {"prompt": subject.prompt_text, "answer": subject.sampled_text, "tools": subject.tool_text}
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
