"""The ledger of scores: bytes a token, seconds against those of raw bytes, and what half precision costs.

Claim
    Scores take fewer bytes than their numbers, whose ids compress, and reading them back costs a training little.

Measured
    Sequences of 500 scored tokens with logits of a Zipf distribution over 151,936 ids in an order of their own at each
    position (the least that ids can compress), by the number k of most probable tokens. Ours puts 16 sequences at a
    time, as a scoring request answers, and finds them one by one, as a training reads rows. The limit writes the same
    arrays as bytes to one file and reads them by `numpy.fromfile`; both go to the page cache, without fsync. Ratios are
    CPU seconds of ours over those of the limit, in rounds of both in turn. The KL of a student whose logits are the
    teacher's with noise is computed over the k best and the others, in float64: its error by half precision is the mean
    difference a token, beside the KL.

Learnt (two cores that others used as well, three rounds)
           k   bytes a token   over raw   put over raw   find over raw   us of CPU a token found   KL      its error
           0             5.4       1.35            4.1              15                      0.88
           1            12.0       1.00            3.0             8.1                      0.92   0.031       2e-5
          20            95.4       0.76            5.0             7.8                      0.81   0.065       3e-5
         100           443.1       0.73            4.1             9.1                      1.4    0.071       3e-5
    Raw is 4 bytes a token and 6 for each of the k and 2. Finding a row is some 0.4 ms, most of it opening the file, the
    checks of Arrow and the digest; a training on a GPU takes tens of microseconds a token, so that a memory map kept
    open would gain nothing that shows. Real ids compress further than these: 79 bytes a token of the embedded teacher.
    The error of half precision is a two-thousandth of the KL; that of leaving out the others is their mass.
"""

import os
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.frame.rounds import alternate, argument_parser, publish, ratio, spread
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs

_VOCABULARY: Final = 151_936
_LENGTH: Final = 500
_AT_ONCE: Final = 16
_NOISE: Final = 0.5
_KEPT: Final = 2048
"""Ids of a position that are computed: the mass of the others is a constant."""


def zipf_logprobs(count: int, chance: np.random.Generator) -> np.ndarray:
    """Log-probabilities of the most probable ids at each position, [count, _KEPT], best first."""
    exponents = chance.uniform(1.1, 3.0, size=(count, 1))
    logits = -exponents * np.log(np.arange(1, _KEPT + 1)) + 0.1 * chance.standard_normal((count, _KEPT))
    logits = -np.sort(-logits, axis=1)
    shifted = np.exp(logits - logits[:, :1])
    return np.log(shifted / (shifted.sum(axis=1, keepdims=True) * 1.001))


def scored(k: int, chance: np.random.Generator) -> SequenceScores:
    """One sequence."""
    logprobs = zipf_logprobs(_LENGTH, chance)[:, : max(1, k)]
    ids = chance.integers(_VOCABULARY, size=logprobs.shape)
    return SequenceScores(logprobs[:, 0].tolist(), TopLogprobs.rounded(ids, logprobs) if k else None)


def half_precision_error(k: int, chance: np.random.Generator, num_positions: int = 2000) -> tuple[float, float]:
    """Mean KL(teacher || student) of k ids and the others, and the mean difference that rounding makes, in nats."""
    teacher = zipf_logprobs(num_positions, chance)
    student = teacher + _NOISE * chance.standard_normal(teacher.shape)
    student -= np.log(np.exp(student).sum(axis=1, keepdims=True) * 1.001)
    log_p = _merged(student[:, :k], np.log1p(-np.exp(student[:, :k]).sum(axis=1)))
    exact = _merged(teacher[:, :k], np.log1p(-np.exp(teacher[:, :k]).sum(axis=1)))
    top = TopLogprobs.rounded(np.zeros((num_positions, k), np.int32), teacher[:, :k])
    rounded = _merged(top.logprobs_NK.astype(np.float64), top.log_tail_N.astype(np.float64))
    kls = [(np.exp(log_q) * (log_q - log_p)).sum(axis=1) for log_q in (exact, rounded)]
    return float(kls[0].mean()), float(np.abs(kls[0] - kls[1]).mean())


def _merged(inside: np.ndarray, others: np.ndarray) -> np.ndarray:
    joined = np.concatenate([inside, others[:, None]], axis=1)
    normalised: np.ndarray = joined - np.log(np.exp(joined).sum(axis=1, keepdims=True))
    return normalised


def arrays_of(scores: SequenceScores) -> list[np.ndarray]:
    """The numbers of a sequence."""
    own = [np.array(scores.logprobs, np.float32)]
    return own if scores.top is None else [*own, *(getattr(scores.top, name) for name in TopLogprobs.__slots__)]


def put(folder: Path, sequences: list[SequenceScores], k: int) -> None:
    """Puts all under new keys."""
    ledger = ScoreLedger(folder, k)
    for first in range(0, len(sequences), _AT_ONCE):
        ledger.put({os.urandom(32): scores for scores in sequences[first : first + _AT_ONCE]})
    ledger.close()


def find(ledger: ScoreLedger, keys: list[bytes]) -> None:
    """Finds each by itself."""
    if not all(ledger.find([key]) for key in keys):
        raise RuntimeError("scores that were put are gone")


def write_raw(path: Path, sequences: list[SequenceScores]) -> None:
    """The same numbers as bytes."""
    with path.open("wb", buffering=0) as file:
        for scores in sequences:
            file.write(b"".join(array.tobytes() for array in arrays_of(scores)))


def read_raw(path: Path, sequences: list[SequenceScores]) -> None:
    """The same numbers, array by array."""
    with path.open("rb") as file:
        for scores in sequences:
            for array in arrays_of(scores):
                np.fromfile(file, array.dtype, array.size)


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--sequences", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    lines = [
        "   k  bytes a token  over raw  put over raw  find over raw  us of CPU a token found  KL and its error, nats"
    ]
    figures = {}
    for k in (0, 1, 20, 100):
        chance = np.random.default_rng(k)
        sequences = [scored(k, chance) for _ in range(options.sequences)]
        with tempfile.TemporaryDirectory(dir=".") as name:
            folder = Path(name)
            known = ScoreLedger(folder / "known", k)
            keys = [os.urandom(32) for _ in sequences]
            for key, scores in zip(keys, sequences, strict=True):
                known.put({key: scores})
            known.close()
            write_raw(folder / "raw", sequences)
            [segment] = (folder / "known").glob("*.arrows")
            size, raw = segment.stat().st_size, (folder / "raw").stat().st_size
            costs = alternate(
                {
                    "put": partial(put, folder / "put", sequences, k),
                    "raw put": partial(write_raw, folder / "raw", sequences),
                    "find": partial(find, ScoreLedger(folder / "known", k), keys),
                    "raw find": partial(read_raw, folder / "raw", sequences),
                },
                options.rounds,
            )
        cpu = {side: [cost.cpu_s for cost in side_costs] for side, side_costs in costs.items()}
        tokens = _LENGTH * len(sequences)
        found_us = spread([seconds / tokens * 1e6 for seconds in cpu["find"]])
        put_over, find_over = ratio(cpu["put"], cpu["raw put"]), ratio(cpu["find"], cpu["raw find"])
        kl, error = half_precision_error(k, chance) if k else (0.0, 0.0)
        figures[f"k{k}"] = {
            "bytes_a_token": size / tokens,
            "size_over_raw": size / raw,
            "put_over_raw": asdict(put_over),
            "find_over_raw": asdict(find_over),
            "find_us_a_token": asdict(found_us),
            "kl": kl,
            "half_precision_error": error,
        }
        lines.append(
            f"{k:4}  {size / tokens:13.1f}  {size / raw:8.2f}  {put_over.median:12.1f}  {find_over.median:13.1f}"
            f"  {found_us.median:23.2f}  {kl:.3f} {error:.0e}"
        )
    publish(lines, figures, options.json)


if __name__ == "__main__":
    main()
