"""A key, followed through everything that a run writes."""

import os
import pickletools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error

CANARY = "sk-canary-6f1d0c2b9a"
ROWS = [{"prompt": "What is 17 + 25?"}, {"prompt": "Who is there?"}]


def answer(asked: Asked, sent: set[str]) -> Reply:
    sent.add(asked.authorization)
    if "17" in asked.body["messages"][-1]["content"]:
        return Reply(completion("It is 42."))
    return error(400, f"the key {CANARY} may not ask this")


def _folder_of_the_servers_database() -> Path:
    from prefect.settings import get_current_settings

    address = get_current_settings().server.database.connection_url
    assert address is not None
    return Path(address.get_secret_value().removeprefix("sqlite+aiosqlite:///")).parent


def _written(*folders: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def _is_pickle(content: bytes) -> bool:
    if not content.startswith(b"\x80") or not content.endswith(b"."):
        return False
    try:
        return bool(list(pickletools.genops(content)))
    except ValueError:
        return False


def test_a_run_writes_neither_its_key_nor_a_pickle(
    generate_from: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("STILLHOUSE_TEST_KEY", CANARY)
    sent: set[str] = set()
    with SimulatedProvider(partial(answer, sent=sent)) as provider, caplog.at_level("DEBUG"):
        generate_from(provider.url, ROWS, tracking={"enabled": True}, rollouts={"failure_budget": 1.0})
    # Without this the search below would find nothing whatever the code did.
    assert sent == {f"Bearer {CANARY}"}
    files = _written(tmp_path, Path(os.environ["PREFECT_HOME"]), _folder_of_the_servers_database())
    names = {path.name for path in files}
    assert {"mlflow.db", "journal.sqlite3", "prefect-test.db"} <= names
    assert any(b"may not ask this" in content for content in files.values())
    assert [path for path, content in files.items() if CANARY.encode() in content] == []
    assert CANARY not in "".join(capfd.readouterr()) + caplog.text
    assert [path for path, content in files.items() if _is_pickle(content) or b"gASV" in content] == []
