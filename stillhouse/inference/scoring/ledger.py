"""The ledger of scores: what teachers said of given tokens, durable before it is used and shared by all that reads it.

A folder for each teacher, named by everything that its scores depend on, has a file for each process that scored with
it. Scores of a sequence are found by its tokens, which of them are scored, and the number of most probable tokens asked
for; those with more serve fewer. Scores whose bytes have changed on the disk are requested again.
"""

import hashlib
import json
import logging
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import Final, TypeVar

from stillhouse.errors import StoreError
from stillhouse.inference.copier import Copier
from stillhouse.inference.scoring.api import GivenIds, TokenSequence
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inference.scoring.segments import SEGMENT, Place, SegmentWriter, find_keys, read_scores
from stillhouse.store import ArtifactStore
from stillhouse.store.atomic import unwritable, write_atomic
from stillhouse.store.fingerprint import canonical_json, digest
from stillhouse.store.remote import RemoteFolder
from stillhouse.types import JsonObject

LEDGER: Final = "scores"
"""Folder of the ledger in a store."""
TEACHER_FILE: Final = "teacher.json"
_IDENTITY_DIGITS: Final = 16
SAME_TEACHER: Final = 0.05
"""Difference in nats a token up to which two answers are those of one model: half-precision servers round differently
in another batch."""

SequenceT = TypeVar("SequenceT", bound=TokenSequence)

logger = logging.getLogger(__name__)


class ScoreLedger:
    """The scores of one teacher, with `top_k` alternatives at each token; raises StoreError if it cannot be read."""

    def __init__(self, folder: Path, top_k: int = 0) -> None:
        self.folder = folder
        self._top_k = top_k
        self._writer: SegmentWriter | None = None
        self._lock = threading.Lock()
        self._places: dict[bytes, Place] = {}
        try:
            for path in sorted(folder.glob(f"*.{SEGMENT}")):
                self._note(dict(find_keys(path)))
        except OSError as error:
            raise _unreadable(folder, error) from error

    @staticmethod
    def key(sequence: TokenSequence) -> bytes:
        """Return the key of a sequence, of which of its tokens are scored, and of the ids that are scored there."""
        hasher = hashlib.sha256(array("q", sequence.token_ids).tobytes())
        hasher.update(bytes(sequence.loss_mask))
        if isinstance(sequence, GivenIds):
            hasher.update(sequence.ids_NK.tobytes())
        return hasher.digest()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, SequenceScores]:
        """Return the known scores, with as many of the most probable tokens as asked; raise StoreError on failure."""
        with self._lock:
            places = {key: place for key in keys if (place := self._places.get(key)) and place.top_k >= self._top_k}
        found: dict[bytes, SequenceScores] = {}
        by_batch = sorted(places.items(), key=lambda item: item[1])
        for (path, offset), items in groupby(by_batch, key=lambda item: item[1][:2]):
            batch = list(items)
            try:
                scores = read_scores(path, offset, [place.row for _, place in batch])
            except OSError as error:
                raise _unreadable(self.folder, error) from error
            found |= {key: self._asked(one) for (key, _), one in zip(batch, scores, strict=True) if one is not None}
        if damaged := places.keys() - found.keys():
            logger.warning(
                "ledger of scores %s: %d of %d answers are damaged: their bytes do not match their digests. They are "
                "asked for again",
                self.folder,
                len(damaged),
                len(places),
            )
            with self._lock:
                for key in damaged:
                    del self._places[key]
        return found

    def put(self, answers: Mapping[bytes, SequenceScores]) -> None:
        """Make answers durable; raise StoreError if they cannot be written."""
        if not answers:
            return
        try:
            with self._lock:
                if self._writer is None:
                    name = f"{time.time_ns():020d}-{uuid.uuid4().hex}.{SEGMENT}"
                    self._writer = SegmentWriter(self.folder / name)
                self._note(self._writer.append(answers, self._top_k))
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def completed(
        self, sequences: Sequence[SequenceT], score: Callable[[Sequence[SequenceT]], Sequence[SequenceScores]]
    ) -> list[SequenceScores]:
        """Return all scores; `score` makes, and this keeps, those not known. Raise StoreError where that fails."""
        keys = [self.key(sequence) for sequence in sequences]
        known = self.find(keys)
        missing = {key: sequence for key, sequence in zip(keys, sequences, strict=True) if key not in known}
        if missing:
            new = dict(zip(missing, score(list(missing.values())), strict=True))
            self.put(new)
            known |= new
        return [known[key] for key in keys]

    def close(self) -> None:
        """End this process's file; the next answer begins another."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _note(self, places: Mapping[bytes, Place]) -> None:
        """Keep the first answer, unless another has more of the most probable tokens."""
        for key, place in places.items():
            known = self._places.get(key)
            if known is None or known.top_k < place.top_k:
                self._places[key] = place

    def _asked(self, scores: SequenceScores) -> SequenceScores:
        if scores.top is None:
            return scores
        return SequenceScores(scores.logprobs, scores.top.best(self._top_k) if self._top_k else None)


def _unreadable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"ledger of scores {folder}: cannot be read: {error}. Mend the permissions there")


@contextmanager
def open_ledger(
    store: ArtifactStore, teacher: JsonObject, probe: Sequence[float], top_k: int = 0
) -> Iterator[ScoreLedger]:
    """Yield a teacher's ledger, which on object storage begins with what others handed on, and is handed on itself.

    `teacher` is everything on which its scores depend, such as the temperature, and `probe` its log-probabilities of
    the tokens of a probe. Raise StoreError if it cannot be read or written, or the storage cannot be reached.
    """
    if store.remote is not None:
        _fetch(store.remote, store.root, digest(teacher)[:_IDENTITY_DIGITS])
    with closing(ScoreLedger(_folder_of(store.root, teacher, probe), top_k)) as ledger:
        if store.remote is None:
            yield ledger
            return
        copier = Copier(partial(hand_on, ledger, store.remote))
        try:
            yield ledger
        finally:
            copier.stop()


def _folder_of(root: Path, teacher: JsonObject, probe: Sequence[float]) -> Path:
    """Return the teacher's folder.

    A server's name and address do not tell its weights. Where it scores the tokens of the probe otherwise than when its
    scores were recorded, it is another teacher, with a folder of its own.
    """
    identity = digest(teacher)[:_IDENTITY_DIGITS]
    for number in count(1):
        folder = root / LEDGER / f"{identity}-{number}"
        try:
            known = json.loads((folder / TEACHER_FILE).read_bytes())["probe"]
        except FileNotFoundError:
            if number > 1:
                logger.warning(
                    "teacher %s scores otherwise than when its scores in %s were recorded: other weights answer to its "
                    "name, and those scores are not used",
                    teacher,
                    folder.with_name(f"{identity}-{number - 1}"),
                )
            write_atomic(folder / TEACHER_FILE, canonical_json({**teacher, "probe": list(probe)}))
            return folder
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{folder / TEACHER_FILE}: cannot be read: {error}. Delete {folder}, and its tokens are scored again"
            ) from error
        if len(known) == len(probe) and all(
            abs(one - other) <= SAME_TEACHER for one, other in zip(known, probe, strict=True)
        ):
            return folder
    raise AssertionError


def hand_on(ledger: ScoreLedger, remote: RemoteFolder) -> int:
    """Upload the files that the storage lacks, begin another, return their number; raise StoreError on failure."""
    ledger.close()
    name = f"{LEDGER}/{ledger.folder.name}"
    there = remote.sizes(name)
    paths = [
        path for path in (ledger.folder / TEACHER_FILE, *ledger.folder.glob(f"*.{SEGMENT}")) if path.name not in there
    ]
    if paths:
        remote.upload({f"{name}/{path.name}": path for path in paths})
    return len(paths)


def _fetch(remote: RemoteFolder, root: Path, identity: str) -> None:
    """Download the files of a teacher's ledgers that are not here."""
    names = [name for name in remote.sizes(LEDGER) if name.startswith(f"{identity}-")]
    missing = {f"{LEDGER}/{name}": root / LEDGER / name for name in names if not (root / LEDGER / name).exists()}
    if missing:
        logger.info("%s: fetching %d files from %s", root / LEDGER, len(missing), remote.url)
        remote.download(missing)
