"""Peers from the package index: an environment for each, or a folder put on top of what is installed here."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HERE: Final = frozenset({"engine", "script", "batches", "floor"})
"""Sides that need nothing but this environment."""
PEERS: Final[dict[str, tuple[str, ...]]] = {
    # distilabel imports `requests` without requiring it.
    "distilabel": ("distilabel[openai]==1.5.3", "requests"),
    "curator": ("bespokelabs-curator==0.1.31",),
    "inspect_ai": ("inspect_ai==0.3.285", "openai==3.52.0"),
    "datadesigner": ("data-designer==0.9.6",),
}
TRL: Final = "trl==1.16.0"
_MARKER: Final = "made"
"""File that names the installed packages; written last."""


class NotInstallable(Exception):
    """A peer cannot be installed here."""


def python_of(side: str, root: Path) -> Path:
    """The interpreter that has the side's package; its environment is created when it is first needed.

    Args:
        side: the client.
        root: folder of the environments.

    Raises:
        NotInstallable: the package index did not provide it; the message is pip's last line.
    """
    if side in HERE:
        return Path(sys.executable)
    folder = root / side
    python = folder / "bin" / "python"
    if not _holds(folder, PEERS[side]):
        print(f"installing {', '.join(PEERS[side])} into {folder} ...", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        _install(side, folder, PEERS[side], [str(python), "-m", "pip", "install", "-q"])
    return python


def trl_folder(folder: Path) -> Path:
    """The folder that holds TRL, to be put on a child's path: both sides then run the same torch and transformers.

    Raises:
        NotInstallable: the package index did not provide it; the message is pip's last line.
    """
    packages = (TRL, *(name for name in ("accelerate", "datasets") if find_spec(name) is None))
    if not _holds(folder, packages):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        _install(TRL, folder, packages, pip)
    return folder


def _holds(folder: Path, packages: Sequence[str]) -> bool:
    marker = folder / _MARKER
    return marker.exists() and marker.read_text(encoding="utf-8") == "\n".join(packages)


def _install(peer: str, folder: Path, packages: Sequence[str], pip: Sequence[str]) -> None:
    installed = subprocess.run([*pip, *packages], capture_output=True, text=True)
    if installed.returncode:
        lines = installed.stderr.strip().splitlines() or ["pip said nothing"]
        raise NotInstallable(f"{peer}: {lines[-1]}")
    (folder / _MARKER).write_text("\n".join(packages), encoding="utf-8")
