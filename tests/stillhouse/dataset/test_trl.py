import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, CandidateShard
from stillhouse.dataset.table import TableWriter
from stillhouse.dataset.write import write_rows
from stillhouse.embedded import embedded_path
from stillhouse.types import Trajectory

SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds TRL alone, to be put before what is installed here."""
    folder = tmp_path_factory.mktemp("trl")
    packages = ["trl>=1.16,<2", *(["accelerate"] if find_spec("accelerate") is None else [])]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"TRL cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.fixture
def trajectories(make_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    """Two rows with the calculator, two with a tool whose parameters have other names, and a wrong twin of each."""
    made = [make_trajectory(number, prompt_id=f"p{number % 4}") for number in range(8)]
    for trajectory in made:
        trajectory.messages[0]["content"] = f"Case {trajectory.prompt_id}."
        if trajectory.prompt_id in ("p2", "p3"):
            trajectory.tools[:] = [SEARCH]
            function = {"name": "look_up", "arguments": '{"word":"egg"}'}
            trajectory.messages[1]["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]  # type: ignore[typeddict-item]
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trl_trains_on_the_files_and_masks_the_same(trl: Path, trajectories: list[Trajectory], tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    with TableWriter(tmp_path / "candidates.parquet", CANDIDATE_COLUMNS) as writer:
        for trajectory in trajectories:
            writer.write(candidate_row(trajectory, None, {}, None))
    selection: Any = SimpleNamespace(
        splits=np.array([0, 0, 0, 1, -1, -1, -1, -1], np.int8), reasons=np.array([0] * 4 + [1] * 4, np.uint64),
        pass_rates=np.full(8, 0.5, np.float32), verified=np.array([1] * 4 + [0] * 4, np.int8),
        repeated=np.zeros(8, bool),
        reasons_of=lambda row: ["wrong"] if row >= 4 else [],
    )  # fmt: skip
    write_rows([CandidateShard(tmp_path / "candidates.parquet", tmp_path)], selection, folder)

    student = str(embedded_path("student"))
    environment = {**os.environ, "PYTHONPATH": str(trl), "HF_HUB_OFFLINE": "1"}
    run = [sys.executable, str(Path(__file__).with_name("trl_run.py")), str(folder), student, str(tmp_path)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]

    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["sft_losses"]) == 2
    assert np.isfinite(found["sft_losses"]).all()
    tokenizer = load_tokenizer("embedded:student")
    ours = {}
    for trajectory in trajectories[:3]:
        ids, mask, _ = render_samples(tokenizer, trajectory.messages, trajectory.tools)[0]
        ours[tokenizer.decode(ids)] = tokenizer.decode(list(compress(ids, mask)))
    assert dict(zip(found["texts"], found["supervised"], strict=True)) == ours
    shown = {name for name in ("calculator(expression)", "look_up(word, limit)") for text in ours if name in text}
    assert shown == {"calculator(expression)", "look_up(word, limit)"}
