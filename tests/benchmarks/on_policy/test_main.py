import json
from pathlib import Path

import pytest

from benchmarks.frame.peers import NotInstallable, trl_folder
from benchmarks.on_policy.__main__ import main


@pytest.mark.slow
def test_both_sides_distill_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        folder = trl_folder(tmp_path / "trl")
    except NotInstallable as error:
        pytest.skip(str(error))
    main(["--quick", "--threads", "1", "--peer", str(folder), "--json", str(tmp_path / "report.json")])
    assert capsys.readouterr().out.count(": holds") == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["losses"]["largest_difference"] < 1e-5
    assert report["losses"]["first"] > report["losses"]["last"] > 0.0
    (speed,) = report["speeds"]
    for turn in (speed["ours"][0], speed["trl"][0]):
        assert turn["split"].keys() == {"sample", "score", "train", "sync"}
        assert min(turn["split"].values()) >= 0.0
        assert turn["speed"]["peak_bytes"] > 1e8
