"""An environment for each peer, from the package index, made when it is first needed."""

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

HERE: Final = frozenset({"engine", "script", "batches", "floor"})
PEERS: Final[dict[str, tuple[str, ...]]] = {
    # It imports `requests` and does not ask for it.
    "distilabel": ("distilabel[openai]==1.5.3", "requests"),
    "curator": ("bespokelabs-curator==0.1.31",),
    "inspect_ai": ("inspect_ai==0.3.285", "openai==3.52.0"),
    "datadesigner": ("data-designer==0.9.6",),
}
_MADE: Final = "made"


class NotInstallable(Exception):
    """A peer cannot be installed here."""


def python_of(side: str, root: Path) -> Path:
    """The interpreter that has the side's package.

    Args:
        side: the client.
        root: folder of the environments.

    Raises:
        NotInstallable: the package index did not give it; the message is pip's last line.
    """
    if side in HERE:
        return Path(sys.executable)
    folder = root / side
    python = folder / "bin" / "python"
    wanted = "\n".join(PEERS[side])
    marker = folder / _MADE
    if marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(PEERS[side])} into {folder} ...", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    pip = subprocess.run([python, "-m", "pip", "install", "-q", *PEERS[side]], capture_output=True, text=True)
    if pip.returncode:
        said = pip.stderr.strip().splitlines() or ["pip said nothing"]
        raise NotInstallable(f"{side}: {said[-1]}")
    marker.write_text(wanted, encoding="utf-8")
    return python
