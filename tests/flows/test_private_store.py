"""All that a run leaves in its store is for its owner alone, also where the umask would let everybody read it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion


@pytest.fixture
def _lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_lax_umask")
def test_no_file_or_folder_of_a_store_is_open_to_others(tmp_path: Path, generate_from: Callable[..., Any]) -> None:
    def script(request: ReceivedRequest) -> Reply:
        return Reply(completion("answer to " + request.body["messages"][-1]["content"]))

    rows = [{"prompt": f"question {number}", "tools": []} for number in range(6)]
    with SimulatedProvider(script) as provider:
        generate_from(provider.url, rows, tracking={"enabled": True})
    store = tmp_path / "runs"
    assert {"journal.sqlite3", "mlflow.db", "artifacts", "reports", "results"} <= {
        path.name for path in store.iterdir()
    }
    assert [path for path in (store, *store.rglob("*")) if path.stat().st_mode & 0o077] == []
