import subprocess

import pytest

from stillhouse.progress.hints import hint_lines

MLFLOW = "NO_JOBS=false /srv/.venv/bin/mlflow ui --backend-store-uri sqlite:////a/rather/long/path/mlflow.db"
HINTS = {"MLflow": MLFLOW, "run in MLflow": "http://127.0.0.1:5000/#/experiments/1/runs/0635e232b54c4b609cee"}


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_a_command_pasted_as_it_is_shown_runs_as_it_is_written(width: int | None) -> None:
    shown = "\n".join(line.plain for line in hint_lines({"MLflow": MLFLOW}, width)).removeprefix("MLflow").strip()
    words = subprocess.run(["sh", "-c", f'printf "%s\n" {shown}'], capture_output=True, text=True, check=True)
    assert words.stdout.split("\n")[:-1] == MLFLOW.split()


def test_lines_fit_the_terminal_and_no_path_is_broken() -> None:
    lines = [line for text in hint_lines(HINTS, 80) for line in text.plain.splitlines()]
    assert max(map(len, lines)) <= 80
    assert HINTS["run in MLflow"] in " ".join(lines)
    assert "sqlite:////a/rather/long/path/mlflow.db" in " ".join(lines)


def test_what_fits_stands_behind_its_purpose() -> None:
    assert [line.plain for line in hint_lines({"report": "r.html", "run in MLflow": "http://m"}, 80)] == [
        "report        r.html",
        "run in MLflow http://m",
    ]


def test_a_quoted_path_is_left_in_one_piece() -> None:
    command = "stillhouse view gentle-otter --store '/a path/with spaces that is longer than the terminal'"
    assert [line.plain for line in hint_lines({"view": command}, 40)] == ["view", f"  {command}"]
