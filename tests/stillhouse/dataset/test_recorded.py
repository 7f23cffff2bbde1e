from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stillhouse.dataset.recorded import RecordedWriter, copy_recorded, read_recorded
from stillhouse.dataset.schema import RECORDED_FILE
from stillhouse.errors import InputError
from stillhouse.inference.top_tokens import read_top_tokens
from stillhouse.types import Trajectory, Turn
from tests.provider.logprobs import token_logprobs


def recorded(*texts: str | None) -> list[Turn]:
    turn = Turn("stop", {}, 0.1, "m")
    tops = [None if text is None else read_top_tokens(token_logprobs([text.encode()], 3), 3) for text in texts]
    return [replace(turn, top_logprobs=None if top is None else top.pack()) for top in tops]


def conversation(key: str, turns: list[Turn], num_given: int = 0) -> Trajectory:
    messages = [
        message
        for number in range(num_given + len(turns))
        for message in ({"role": "user", "content": "q"}, {"role": "assistant", "content": f"a{number}"})
    ]
    return Trajectory(key, "p", 0, messages, [], turns, "answered", "m")  # type: ignore[arg-type]


def said(folder: Path) -> dict[str, dict[int, bytes]]:
    """The first token of each turn, by row and message."""
    return {
        row.id: {place: top.spellings[0] for place, top in row.turns.items() if top.spellings}
        for row in read_recorded(folder)
    }


def written(path: Path, *trajectories: Trajectory) -> Path:
    with RecordedWriter(path) as writer:
        for trajectory in trajectories:
            writer.write([trajectory])
    return path


def test_turns_are_found_by_the_message_that_they_sampled(tmp_path: Path) -> None:
    rows = [
        conversation("one", recorded("x", "y")),
        conversation("behind answers of the prompt", recorded("z"), num_given=2),
        conversation("in part", recorded(None, "v")),
        conversation("not at all", recorded(None)),
    ]
    written(tmp_path / RECORDED_FILE, *rows)
    assert said(tmp_path) == {
        "one": {1: b"x", 3: b"y"},
        "behind answers of the prompt": {5: b"z"},
        "in part": {3: b"v"},
    }


def test_a_dataset_has_what_was_recorded_of_its_kept_rows_over_all_shards(tmp_path: Path) -> None:
    first = written(tmp_path / "first", *(conversation(f"a{number}", recorded("x")) for number in range(3)))
    last = written(tmp_path / "last", *(conversation(f"b{number}", recorded("y")) for number in range(2)))
    kept = np.array([True, False, True, False, False, True, True])
    copy_recorded([(first, 3), (None, 2), (last, 2)], kept, tmp_path / RECORDED_FILE)
    assert list(said(tmp_path)) == ["a0", "a2", "b0", "b1"]


def test_without_anything_recorded_there_is_no_file(tmp_path: Path) -> None:
    assert not written(tmp_path / RECORDED_FILE, conversation("a", recorded(None))).exists()
    kept = written(tmp_path / "shard", conversation("a", recorded("x")))
    copy_recorded([(kept, 1)], np.array([False]), tmp_path / RECORDED_FILE)
    assert list(read_recorded(tmp_path)) == []
    assert not (tmp_path / RECORDED_FILE).exists()


def test_damage_is_named_with_its_place(tmp_path: Path) -> None:
    bad = [replace(recorded(None)[0], top_logprobs="no base64")]
    with pytest.raises(InputError, match=r"a: .*top_logprobs"):
        written(tmp_path / RECORDED_FILE, conversation("a", bad))
    written(tmp_path / RECORDED_FILE, conversation("b", [replace(bad[0], top_logprobs="bm8gemxpYg==")]))
    with pytest.raises(InputError, match="row b: "):
        list(read_recorded(tmp_path))
    (tmp_path / RECORDED_FILE).write_bytes(b"no Parquet")
    with pytest.raises(InputError, match=RECORDED_FILE):
        list(read_recorded(tmp_path))
