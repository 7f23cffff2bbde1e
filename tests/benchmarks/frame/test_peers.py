from pathlib import Path

import pytest

from benchmarks.frame.peers import NotInstallable, python_of, trl_folder


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_named_with_pips_reason(tmp_path: Path, no_index: None) -> None:
    with pytest.raises(NotInstallable, match=r"distilabel: .*distilabel"):
        python_of("distilabel", tmp_path)


def test_trl_that_cannot_be_installed_is_named_with_pips_reason(tmp_path: Path, no_index: None) -> None:
    with pytest.raises(NotInstallable, match=r"trl==.*trl"):
        trl_folder(tmp_path / "trl")
