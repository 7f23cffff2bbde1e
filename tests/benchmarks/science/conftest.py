from pathlib import Path

import pytest

from benchmarks.science.lab import Lab
from benchmarks.science.models import write_new_model


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Everything a few steps long."""
    return Lab(tmp_path_factory.mktemp("lab"), quick=True)


@pytest.fixture(scope="session")
def new_model(lab: Lab) -> Path:
    """A model of the task `chain` with random weights."""
    return write_new_model(lab.folder / "models" / "random-0", seed=0)
