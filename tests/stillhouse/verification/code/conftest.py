import pytest


@pytest.fixture(scope="session", autouse=True)
def needs_jail(jail: None) -> None:
    """Every test here runs answers."""
