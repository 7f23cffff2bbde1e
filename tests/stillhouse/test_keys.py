"""Keys of `.env`, and what is said of one that is nowhere."""

import os
from pathlib import Path

import pytest

from stillhouse.keys import PLACES, place_of, read_env_file, unset


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {"HERE": "of the environment", "EMPTY": "", "EMPTY_KEY": ""})
    PLACES.clear()


def test_the_environment_wins_over_the_file_and_only_a_key_may_not_be_empty(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HERE=a\nEMPTY=b\nEMPTY_KEY=c\nNEW='d'\nLONG=${HERE}!\n", encoding="utf-8")
    read_env_file({"EMPTY_KEY"})
    assert [os.environ[name] for name in ("HERE", "EMPTY", "EMPTY_KEY", "NEW")] == ["of the environment", "", "c", "d"]
    assert os.environ["LONG"] == "of the environment!"
    assert (place_of("NEW"), place_of("HERE")) == (str(tmp_path / ".env"), "the environment")


def test_a_key_that_is_nowhere_is_said_to_be_in_none_of_the_places_that_were_looked_at(tmp_path: Path) -> None:
    assert f"NO_KEY is not set, nor is it in {tmp_path}/.env (no such file). Put it into one" in unset("NO_KEY")
    (tmp_path / ".env").touch()
    PLACES["NO_KEY"] = "Secret block `no-key`"
    assert f"nor is it in {tmp_path}/.env, nor as Secret block `no-key`. Put it into one of them" in unset("NO_KEY")
