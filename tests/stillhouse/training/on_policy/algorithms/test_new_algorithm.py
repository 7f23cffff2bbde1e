"""The page that adds a method, followed to the letter in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[5]
_PAGE = _ROOT / "docs/recipes/new_algorithm.md"
_BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_the_method_of_the_page_can_be_added_and_its_test_passes(tmp_path: Path) -> None:
    shutil.copytree(_ROOT / "stillhouse", tmp_path / "stillhouse", ignore=shutil.ignore_patterns("__pycache__"))
    tests = []
    for language, path, block in _BLOCK.findall(_PAGE.read_text(encoding="utf-8")):
        file = tmp_path / path
        if language == "diff":
            _apply(file, block.splitlines())
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        assert not file.exists(), f"{path} is there already"
        file.write_text(block, encoding="utf-8")
        tests += [path] if path.startswith("tests/") else []
    assert tests
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _apply(file: Path, lines: list[str]) -> None:
    """Changes the one place of `file` that has the lines of a diff that are kept or removed."""
    before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
    after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file.name} does not have once:\n{before}"
    file.write_text(text.replace(before, after), encoding="utf-8")
