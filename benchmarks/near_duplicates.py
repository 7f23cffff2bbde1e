"""Near-duplicates planted at known similarities: how many are found, how many found are none, at what cost.

Claims
    found    95 % and more of the pairs whose Jaccard similarity is 0.85 or higher.
    false    below 1 % of the rows called near-duplicates.
    quick    in a fraction of the time of `datasketch`, and right about more.

Measured
    Rows with 60 random words of prompt and 240 of answer; of 20 rows, one repeats another with words replaced, to a
    similarity of 0.85 to 1, and one likewise to 0.5 to 0.8, which is no near-duplicate. Similarities are counted here,
    from sets of five words, without the code under test. The peer is `MinHashLSH` of the package `datasketch` with as
    many permutations and the same threshold, on the first rows; it is left out where it is not installed. The peak is
    that of this process, which holds no rows.

Learnt (two cores that others used heavily, one round)
    100,000 rows, 5,000 planted: recall 0.9996, false 0. Signatures at 3,400 rows/s on one core (5,800 with less
    company), duplicates at 31,000 rows/s, 365 MB. datasketch on 5,000 rows: recall 0.88, false 0.035, since its bands
    alone decide; ours takes 0.19 of its time. A million rows with signatures drawn at random, 50,000 of them repeated,
    take 30 s and 560 MB, 90 of them Python's own. Of one template with other names and numbers, 100,000 rows take 45 s
    of CPU; under a threshold that its rows only just miss, 3 ms a row, as each has 64 pairs decided by their shingles.
"""

import random
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from benchmarks.frame.memory import status_bytes
from benchmarks.frame.rounds import argument_parser, measured, publish
from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, signature_batch
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, CandidateShard
from stillhouse.dataset.table import TableWriter
from stillhouse.types import StopReason, Trajectory, Turn

_CONFIG: Final = DuplicatesConfig(near=True)
_ASKED: Final = 60
_WRITTEN: Final = 240
_PERIOD: Final = 20
_SHARD_ROWS: Final = 10_000
_BATCH: Final = 256


class Row(NamedTuple):
    """A row and what it was made from."""

    words: list[str]
    of: int | None
    """Number of the row it repeats."""
    similarity: float
    """True Jaccard similarity with that row; 0 without one."""


def rows(count: int) -> Iterator[Row]:
    """The same rows at each call; each repeat follows the row it is made from within a period."""
    chance = random.Random(0)
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(20_000)]
    for number in range(count):
        place = number % _PERIOD
        if place == 0:
            originals = [chance.choices(vocabulary, k=_ASKED + _WRITTEN) for _ in range(_PERIOD - 2)]
        if place < _PERIOD - 2:
            yield Row(originals[place], None, 0.0)
            continue
        of = chance.randrange(_PERIOD - 2)
        target = chance.uniform(0.85, 1.0) if place == _PERIOD - 2 else chance.uniform(0.5, 0.8)
        words, similarity = changed(originals[of], target, vocabulary, chance)
        yield Row(words, number - place + of, similarity)


def changed(
    words: Sequence[str], target: float, vocabulary: Sequence[str], chance: random.Random
) -> tuple[list[str], float]:
    """`words` with as many replaced as leave the similarity at `target` or above, and the similarity."""
    replacements = [(place, chance.choice(vocabulary)) for place in chance.sample(range(len(words)), len(words))]

    def trial(number: int) -> list[str]:
        changes = dict(replacements[:number])
        return [changes.get(place, word) for place, word in enumerate(words)]

    number = bisect_right(range(len(words)), -target, key=lambda count: -jaccard(words, trial(count))) - 1
    return trial(number), jaccard(words, trial(number))


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Similarity of the sets of five words in a row."""
    ours, theirs = (set(zip(*(words[start:] for start in range(5)), strict=False)) for words in (first, second))
    return len(ours & theirs) / len(ours | theirs)


def write_shards(count: int, folder: Path) -> tuple[list[CandidateShard], float]:
    """Shards of the first `count` rows, and the seconds that signatures took."""
    shards: list[CandidateShard] = []
    seconds = 0.0
    source = enumerate(rows(count))
    while batch := list(islice(source, _SHARD_ROWS)):
        path = folder / str(len(shards))
        path.mkdir()
        shard = CandidateShard(path / "candidates.parquet", path / "signatures.parquet")
        with (
            TableWriter(shard.candidates, CANDIDATE_COLUMNS) as candidates,
            pq.ParquetWriter(shard.signatures, SIGNATURE_SCHEMA) as signatures,
        ):
            for start in range(0, len(batch), _BATCH):
                trajectories = [_trajectory(number, row) for number, row in batch[start : start + _BATCH]]
                for trajectory in trajectories:
                    candidates.write(candidate_row(trajectory, None, {}, None))
                inputs = [LabelInput.of(trajectory, None) for trajectory in trajectories]
                began = time.perf_counter()
                signed = signature_batch(inputs, _CONFIG)
                seconds += time.perf_counter() - began
                signatures.write_batch(signed)
        shards.append(shard)
    return shards, seconds


def _trajectory(number: int, row: Row) -> Trajectory:
    prompt, answer = " ".join(row.words[:_ASKED]), " ".join(row.words[_ASKED:])
    return Trajectory(
        rollout_key=f"{number:064x}",
        prompt_id=f"{number:064x}",
        sample_index=0,
        messages=[{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}],
        tools=[],
        turns=[Turn("stop", {}, 0.5, "teacher")],
        stop_reason=StopReason.ANSWERED,
        model="teacher",
    )


def found_by_us(shards: Sequence[CandidateShard], folder: Path) -> dict[int, int]:
    """Rows called near-duplicates, each with the row it is said to repeat."""
    parts = find_duplicates(shards, _CONFIG, folder)
    named = (value for part in parts for value in pq.read_table(part)["duplicate_of"].to_pylist())
    return {number: int(of, 16) for number, of in enumerate(named) if of is not None}


def found_by_datasketch(count: int) -> dict[int, list[int]]:
    """Rows that the peer proposes duplicates of among those before them."""
    # Not in the resolved set: whoever wants the comparison installs it.
    from datasketch import MinHash, MinHashLSH  # type: ignore[import-not-found]

    index = MinHashLSH(threshold=_CONFIG.threshold, num_perm=_CONFIG.num_permutations)
    candidates = {}
    for number, row in enumerate(rows(count)):
        signature = MinHash(num_perm=_CONFIG.num_permutations)
        signature.update_batch({" ".join(row.words[start : start + 5]).encode() for start in range(len(row.words) - 4)})
        if before := index.query(signature):
            candidates[number] = before
        index.insert(number, signature)
    return candidates


def scores(candidates: dict[int, list[int]], count: int) -> dict[str, float]:
    """Recall of the planted pairs, and the share of matched rows that repeat none of those named."""
    planted = {number: row.of for number, row in enumerate(rows(count)) if row.similarity >= _CONFIG.threshold}
    right = sum(planted.get(number) in named for number, named in candidates.items() if number in planted)
    return {"recall": right / len(planted), "false_rate": 1 - right / max(1, len(candidates)), "planted": len(planted)}


def beside_datasketch(count: int) -> dict[str, float]:
    """The first `count` rows, signatures and all, by the peer and by us."""
    peers: dict[int, list[int]] = {}
    peer = measured(lambda: peers.update(found_by_datasketch(count)))
    with tempfile.TemporaryDirectory(dir=".") as name:
        shards, signing_s = write_shards(count, Path(name))
        ours = measured(lambda: found_by_us(shards, Path(name) / "duplicates"))
    making = measured(lambda: list(rows(count)))
    score = scores(peers, count)
    return {
        "recall": score["recall"],
        "false_rate": score["false_rate"],
        "ours_over_peer": (ours.wall_s + signing_s) / (peer.wall_s - making.wall_s),
    }


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--peer-rows", type=int, default=10_000, help="rows of the comparison with datasketch")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=".") as name:
        shards, signing_s = write_shards(options.rows, Path(name))
        began = time.perf_counter()
        duplicates = found_by_us(shards, Path(name) / "duplicates")
        finding_s = time.perf_counter() - began
    figures: dict[str, Any] = {
        **scores({number: [of] for number, of in duplicates.items()}, options.rows),
        "found": len(duplicates),
        "signatures_per_s": options.rows / signing_s,
        "found_per_s": options.rows / finding_s,
        "peak_mb": status_bytes("VmHWM") / 1e6,
    }
    lines = [
        f"{options.rows:,} rows, {figures['planted']:,} planted near-duplicates",
        f"  recall                              {figures['recall']:.4f}",
        f"  false                               {figures['false_rate']:.4f}",
        f"  rows/s, signatures, one core        {figures['signatures_per_s']:,.0f}",
        f"  rows/s, duplicates                  {figures['found_per_s']:,.0f}",
        f"  peak memory of the process, MB      {figures['peak_mb']:,.0f}",
    ]
    if find_spec("datasketch") is not None:
        figures["peer"] = peer = beside_datasketch(min(options.rows, options.peer_rows))
        lines += [
            f"datasketch on {min(options.rows, options.peer_rows):,} rows",
            f"  recall                              {peer['recall']:.4f}",
            f"  false                               {peer['false_rate']:.4f}",
            f"  our time over its                   {peer['ours_over_peer']:.3f}",
        ]
    publish(lines, figures, options.json)


if __name__ == "__main__":
    main()
