import json
from pathlib import Path

import pytest

from benchmarks.frame.peers import NotInstallable, trl_folder
from benchmarks.sft.__main__ import main


@pytest.mark.slow
def test_both_sides_train_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        folder = trl_folder(tmp_path / "trl")
    except NotInstallable as error:
        pytest.skip(str(error))
    main(["--quick", "--threads", "1", "--peer", str(folder), "--json", str(tmp_path / "sft.json")])
    assert capsys.readouterr().out.count(": holds") == 1
    report = json.loads((tmp_path / "sft.json").read_text())
    assert report["losses"]["largest_difference"] < 1e-5
    (speed,) = report["speeds"]
    assert speed["ratios"]["tokens_per_cpu_s"]["median"] > 1
    assert speed["ours"][0]["speed"]["peak_bytes"] > 1e8
