"""The guide as it is written and as it is built."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?P<title>[^\n]*)\n(?P<text>.*?)^(?P=indent)```", re.M | re.S)


class Block(NamedTuple):
    """A fenced block of a page."""

    place: str
    language: str
    title: str
    text: str


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    """Return the text of every page, and of the README and the template of a project's, by its path."""
    paths = [ROOT / "README.md", ROOT / "stillhouse/project/files/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    # It names what was removed.
    paths.remove(ROOT / "docs/decisions.md")
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="session")
def blocks(pages: dict[str, str]) -> list[Block]:
    """Return every fenced block, without the indentation of the list it may stand in."""
    return [
        Block(
            place=f"{page}:{text[: fence.start()].count(chr(10)) + 1}",
            language=fence["language"],
            title=fence["title"].strip(),
            text=re.sub(f"^{fence['indent']}", "", fence["text"], flags=re.M),
        )
        for page, text in pages.items()
        for fence in _FENCE.finditer(text)
    ]


@pytest.fixture(scope="session")
def documented_metrics(pages: dict[str, str]) -> list[str]:
    """Return every name in the first column of the tables of the metrics page."""
    cells = re.findall(r"^\| (`[^|]+) \|", pages["docs/reference/metrics.md"], re.M)
    return [name for cell in cells for name in re.findall(r"`([\w/]+)`", cell)]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built guide; a warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return folder
