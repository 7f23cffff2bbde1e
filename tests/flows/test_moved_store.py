"""A store that was moved, as after a restore under another path, through the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.tracking.client import connect, default_uri

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
STILLHOUSE = Path(sys.executable).parent / "stillhouse"


def _distill(store: Path, *more: str) -> None:
    command = [str(STILLHOUSE), "distill", str(ROOT / "configs" / "smoke.yaml")]
    for override in (f"runtime.store={store}", "on_policy.enabled=false", "tracking.register_as=small", *more):
        command += ["--set", override]
    done = subprocess.run(command, cwd=store.parent, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_store_that_was_moved_has_its_champion_and_its_results(tmp_path: Path) -> None:
    was, here = tmp_path / "was", tmp_path / "here"
    _distill(was)
    connect(default_uri(was)).set_registered_model_alias("small", "champion", "1")
    (student,) = was.glob("artifacts/sft/*")
    was.rename(here)
    _distill(here, "promotion.enabled=true", "promotion.start_from_champion=true")
    assert not was.exists()
    known = json.loads((here / "registered" / "small@champion.json").read_bytes())
    assert known == {"folder": f"artifacts/sft/{student.name}", "version": "1"}
    # The second student learnt on from the first, from the same answers.
    assert len(list(here.glob("artifacts/sft/*"))) == 2
    assert len(list(here.glob("artifacts/dataset/*"))) == 1
