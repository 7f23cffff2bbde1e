import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stillhouse.inference.scoring.ledger import LEDGER, TEACHER_FILE, ScoreLedger, hand_on, open_ledger
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.inference.scoring.segments import SEGMENT
from stillhouse.store import ArtifactStore

KEYS = [bytes([number]) * 32 for number in range(40)]
TEACHER = {"model": "big", "temperature": 1.0}


def plain(number: int) -> SequenceScores:
    return SequenceScores([-1.5, -float(number), -0.25])


def with_top(number: int, k: int = 5, length: int = 3) -> SequenceScores:
    chance = np.random.default_rng(number)
    logits = 3 * chance.standard_normal((length, 50))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = np.argsort(-logprobs, axis=1)[:, :k]
    best = TopLogprobs.rounded(ids, np.take_along_axis(logprobs, ids, axis=1))
    return SequenceScores([-float(place) for place in range(length)], best)


def same(one: SequenceScores, other: SequenceScores) -> bool:
    if one.top is None or other.top is None:
        return one == other
    arrays = ((getattr(one.top, name), getattr(other.top, name)) for name in TopLogprobs.__slots__)
    return one.logprobs == other.logprobs and all(
        left.dtype == right.dtype and np.array_equal(left, right) for left, right in arrays
    )


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*.{SEGMENT}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / LEDGER / "big-1"


def test_answers_are_found_by_another_process_bit_by_bit(folder: Path):
    ledger = ScoreLedger(folder, top_k=5)
    ledger.put({KEYS[0]: with_top(0), KEYS[1]: with_top(1, length=7)})
    ledger.put({KEYS[2]: with_top(2)})
    # Not closed: as if it were still scoring, or had been killed.
    found = ScoreLedger(folder, top_k=5).find(KEYS)
    assert found.keys() == set(KEYS[:3])
    assert same(found[KEYS[1]], with_top(1, length=7))
    assert same(found[KEYS[2]], with_top(2))


def test_files_can_be_read_by_every_program_that_reads_arrow(folder: Path):
    import pyarrow as pa

    ledger = ScoreLedger(folder, top_k=5)
    ledger.put({KEYS[0]: with_top(0), KEYS[1]: with_top(1)})
    ledger.close()
    [path] = segments(folder)
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    assert table.column("key").to_pylist() == KEYS[:2]
    assert table.column("top_ids").to_pylist()[0] == with_top(0).top.ids_NK.ravel().tolist()  # type: ignore[union-attr]


def test_scores_with_more_tokens_serve_those_who_want_fewer_and_not_the_other_way_round(folder: Path):
    ledger = ScoreLedger(folder, top_k=5)
    ledger.put({KEYS[0]: with_top(0)})
    ledger.close()
    assert ScoreLedger(folder).find(KEYS) == {KEYS[0]: SequenceScores(with_top(0).logprobs)}
    [fewer] = ScoreLedger(folder, top_k=2).find(KEYS).values()
    assert fewer.top is not None
    assert np.array_equal(fewer.top.ids_NK, with_top(0, k=2).top.ids_NK)  # type: ignore[union-attr]
    mass = np.exp(fewer.top.logprobs_NK.astype(float)).sum(axis=1) + np.exp(fewer.top.log_tail_N.astype(float))
    assert mass == pytest.approx(np.ones(3), abs=2e-3)
    wider = ScoreLedger(folder, top_k=9)
    assert wider.find(KEYS) == {}
    wider.put({KEYS[0]: with_top(0, k=9)})
    for wanted in (9, 5):
        [found] = ScoreLedger(folder, top_k=wanted).find(KEYS).values()
        assert same(found, SequenceScores(found.logprobs, with_top(0, k=9).top.best(wanted)))  # type: ignore[union-attr]


def test_the_first_answer_stays(folder: Path):
    first, second = ScoreLedger(folder), ScoreLedger(folder)
    first.put({KEYS[0]: plain(1)})
    second.put({KEYS[0]: plain(2)})
    assert ScoreLedger(folder).find(KEYS) == {KEYS[0]: plain(1)}


def test_answers_that_changed_on_disk_are_reported_asked_again_and_replaced(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    ledger = ScoreLedger(folder)
    for number in range(3):
        ledger.put({KEYS[number]: plain(number)})
    ledger.close()
    [path] = segments(folder)
    data, stored = bytearray(path.read_bytes()), np.float32([-1.5, -1.0, -0.25]).tobytes()
    assert data.count(stored) == 1
    data[data.index(stored) + 5] ^= 4
    path.write_bytes(data)
    again = ScoreLedger(folder)
    assert again.find(KEYS) == {KEYS[0]: plain(0), KEYS[2]: plain(2)}
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{folder}: 1 of 3 answers are damaged" in said
    again.put({KEYS[1]: plain(7)})
    assert again.find(KEYS)[KEYS[1]] == plain(7)


def test_whatever_byte_of_a_file_is_altered_or_cut_no_wrong_score_is_read(folder: Path):
    ledger = ScoreLedger(folder, top_k=5)
    for number in range(12):
        ledger.put({KEYS[number]: with_top(number)})
    ledger.close()
    [path] = segments(folder)
    whole, chance = path.read_bytes(), np.random.default_rng(0)
    num_found = []
    for trial in range(120):
        data = bytearray(whole[: chance.integers(len(whole))] if trial % 2 else whole)
        if data and trial % 2 == 0:
            data[chance.integers(len(data))] ^= 1 << chance.integers(8)
        path.write_bytes(data)
        found = ScoreLedger(folder, top_k=5).find(KEYS)
        assert all(same(scores, with_top(KEYS.index(key))) for key, scores in found.items())
        num_found.append(len(found))
    assert min(num_found) == 0
    assert np.mean(num_found[::2]) > 6  # a flipped bit costs an answer, or what follows it


PUT = """
import sys
from pathlib import Path
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores
ledger = ScoreLedger(Path(sys.argv[1]))
for number in range(100_000):
    ledger.put({number.to_bytes(32): SequenceScores([-float(number)] * 50)})
    print(number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_it_had_put(folder: Path):
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", PUT, str(folder)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), True)
            for _ in range(30):
                process.stdout.readline()
            time.sleep(0.01)
            process.kill()
            rest = process.stdout.read().split()
        last = int(rest[-1]) if rest else 29
        found = ScoreLedger(folder).find([number.to_bytes(32) for number in range(last + 1)])
        assert [scores.logprobs[0] for scores in found.values()] == [-float(number) for number in range(last + 1)]


def test_other_weights_behind_a_name_have_a_ledger_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    store = ArtifactStore(tmp_path)
    probe, others = [-1.0, -2.0, -0.5], [-1.0, -3.0, -0.5]
    with open_ledger(store, TEACHER, probe) as ledger:
        ledger.put({KEYS[0]: plain(0)})
    with open_ledger(store, TEACHER, [-1.01, -2.0, -0.52]) as rounded:
        assert rounded.find(KEYS).keys() == {KEYS[0]}
    assert not caplog.records
    with open_ledger(store, TEACHER, others) as other:
        assert other.find(KEYS) == {}
    assert "other weights answer to its name" in caplog.text
    for seen, folder in (([-1.0, -3.02, -0.5], other.folder), (probe, ledger.folder)):
        with open_ledger(store, TEACHER, seen) as again:
            assert again.folder == folder
    with open_ledger(store, {**TEACHER, "temperature": 0.5}, probe) as tempered:
        assert tempered.find(KEYS) == {}
    assert json.loads((ledger.folder / TEACHER_FILE).read_bytes()) == {**TEACHER, "probe": probe}


def test_another_machine_begins_with_what_was_handed_on(tmp_path: Path, s3: object):
    machines = [ArtifactStore("s3://bucket/store", tmp_path / name) for name in ("one", "two", "three")]
    remote = machines[0].remote
    assert remote is not None
    with open_ledger(machines[0], TEACHER, [-1.0]) as first:
        first.put({KEYS[0]: plain(0)})
        assert hand_on(first, remote) == 2
        first.put({KEYS[1]: plain(1)})
    assert hand_on(first, remote) == 0, "the rest was handed on at the end"
    with open_ledger(machines[1], TEACHER, [-1.0]) as second:
        assert second.find(KEYS) == {KEYS[0]: plain(0), KEYS[1]: plain(1)}
    with open_ledger(machines[1], TEACHER, [-7.0]) as other:
        other.put({KEYS[2]: plain(2)})
    with open_ledger(machines[2], TEACHER, [-7.0]) as third:
        assert third.find(KEYS) == {KEYS[2]: plain(2)}
