import json
from pathlib import Path

import pytest

from benchmarks.loss_head import main

SIZE = ["--tokens", "64", "--vocabulary", "20000", "--hidden", "16", "--rounds", "1"]


def test_values_and_gradients_agree_and_chunks_save_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Blocks this small would else stay in glibc's heap after they are freed.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    out = tmp_path / "figures.json"
    main([*SIZE, "--max-chunk-elements", str(8 * 20000), "--json", str(out)])
    (figures,) = json.loads(out.read_text())["sizes"]
    assert figures["num_chunks"] == 8
    assert figures["loss_difference"] < 1e-5
    assert figures["gradient_difference"] < 1e-4
    # The logits alone are 5 MB, and the naive way holds them several times.
    assert figures["naive_bytes"] > 64 * 20000 * 4
    assert figures["our_bytes"] < 0.7 * figures["naive_bytes"]
    assert "8 chunks" in capsys.readouterr().out
