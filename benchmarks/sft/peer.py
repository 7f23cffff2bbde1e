"""TRL in a folder of its own, on top of what is installed here: both sides then run the same torch and transformers."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.rollouts.venvs import NotInstallable

TRL: Final = "trl==1.16.0"
_MADE: Final = "made"


def trl_folder(folder: Path) -> Path:
    """The folder, filled from the package index when it is first needed; to be put on a child's path.

    Raises:
        NotInstallable: the package index did not give it; the message is pip's last line.
    """
    wanted = [TRL, *(name for name in ("accelerate", "datasets") if find_spec(name) is None)]
    marker = folder / _MADE
    if marker.exists() and marker.read_text(encoding="utf-8") == "\n".join(wanted):
        return folder
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *wanted]
    pip = subprocess.run(command, capture_output=True, text=True)
    if pip.returncode:
        said = pip.stderr.strip().splitlines() or ["pip said nothing"]
        raise NotInstallable(f"{TRL}: {said[-1]}")
    marker.write_text("\n".join(wanted), encoding="utf-8")
    return folder
