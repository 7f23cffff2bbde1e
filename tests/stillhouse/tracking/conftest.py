"""A real MLflow database, made once: its migrations take seconds."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking.client import connect, default_uri


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return default_uri(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="session")
def client(database: str) -> Any:
    return connect(database)


@pytest.fixture
def tracking(database: str, request: pytest.FixtureRequest) -> TrackingConfig:
    return TrackingConfig(uri=database, experiment=request.node.name)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def fallback_lines() -> Callable[[Path], list[dict[str, Any]]]:
    def read(folder: Path) -> list[dict[str, Any]]:
        path = folder / "tracking-fallback.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    return read
