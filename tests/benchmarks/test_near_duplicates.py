import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.near_duplicates import jaccard, rows

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_planted_has_the_similarity_it_is_said_to_have() -> None:
    made = list(rows(200))
    repeats = [(row, made[row.of]) for row in made if row.of is not None]
    assert len(repeats) == 20
    assert all(row.similarity == jaccard(original.words, row.words) for row, original in repeats)
    assert {row.similarity >= 0.85 for row, _ in repeats} == {True, False}


def test_planted_near_duplicates_are_found_and_few_others(tmp_path: Path) -> None:
    # In a process of its own, whose peak of memory is that of nothing else.
    command = [sys.executable, "-m", "benchmarks.near_duplicates"]
    options = ["--rows", "2000", "--peer-rows", "200", "--json", "figures.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["planted"] == 100
    assert figures["recall"] >= 0.95
    assert figures["false_rate"] < 0.01
    assert figures["peak_mb"] < 2000
    assert "2,000 rows, 100 planted" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
