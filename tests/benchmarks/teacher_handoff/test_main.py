import json
from pathlib import Path

import pytest

from benchmarks.teacher_handoff.__main__ import main


@pytest.mark.slow
def test_hidden_states_are_handed_over_for_a_part_of_the_teachers_pass(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    sizes = ["--trajectories", "3", "--tokens", "8", "--groups", "2", "--threads", "1", "--rounds", "1"]
    main(["--hidden", "64", "--pairs", "tiny", *sizes, "--json", str(out)])
    figures = json.loads(out.read_text())
    wide = figures["64"]
    assert wide["bytes_a_token"] == 64 * 4
    assert 0 < wide["shared memory"]["added"]["median"] < 1
    assert 0 < wide["socket"]["added"]["median"] < 1
    # Twenty tokens as JSON text, and as many again at the token of the prompt beside it.
    assert wide["served"]["bytes_a_token"] > 4 * wide["bytes_a_token"]
    assert {"sampling", "sampling by half", "thread", "process"} < figures["tiny"].keys()
