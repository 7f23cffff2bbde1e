import json
from pathlib import Path

import pytest

from benchmarks.rollouts.venvs import NotInstallable
from benchmarks.sft.__main__ import main
from benchmarks.sft.peer import trl_folder


@pytest.mark.slow
def test_both_sides_train_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        folder = trl_folder(tmp_path / "trl")
    except NotInstallable as error:
        pytest.skip(str(error))
    main(["--quick", "--threads", "1", "--peer", str(folder), "--json", str(tmp_path / "sft.json")])
    assert capsys.readouterr().out.count(": holds") == 1
    found = json.loads((tmp_path / "sft.json").read_text())
    assert found["losses"]["largest_difference"] < 1e-5
    (speed,) = found["speeds"]
    assert speed["ratios"]["tokens_per_cpu_s"]["median"] > 1
    assert speed["ours"][0]["peak_bytes"] > 1e8


def test_trl_that_cannot_be_installed_is_named_with_pips_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(NotInstallable, match=r"trl==.*trl"):
        trl_folder(tmp_path / "trl")
