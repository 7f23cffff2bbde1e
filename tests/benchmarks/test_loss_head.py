import json
from pathlib import Path

import pytest

from benchmarks.loss_head import Head, Loss, Setting, main

V = 20000
SIZE = ["--tokens", "64", "--vocabulary", str(V), "--hidden", "16", "--rounds", "1", "--threads", "1", "--mkl"]


def test_values_and_gradients_agree_and_chunks_save_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Blocks this small would else stay in glibc's heap after they are freed.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    out = tmp_path / "figures.json"
    main([*SIZE, "--dtypes", "float32", "--weights", "trained", "--chunk-elements", str(8 * V), "--json", str(out)])
    (figures,) = json.loads(out.read_text())["settings"]
    assert max(figures["loss_difference"], figures["gradient_difference"]) < 1e-5
    # The logits alone are 5 MB, and the naive way holds them several times.
    assert figures["naive_bytes"] > 64 * V * 4
    assert figures["our_bytes"] < 0.5 * figures["naive_bytes"]
    assert "trained   memory 0." in capsys.readouterr().out


@pytest.mark.parametrize("loss", ["reverse_kl", "jsd"])
def test_naive_divergences_are_those_of_training(loss: Loss) -> None:
    setting = Setting(loss, 16, 300, 8, "float32", is_trained=True, chunk_elements=5 * 300, num_threads=1, onednn=False)
    head = Head(setting)
    value, *_ = ours = head.run("ours")
    assert value > 0.01
    for seen, expected in zip(ours, head.run("naive"), strict=True):
        assert (seen - expected).norm() < 1e-5 * expected.norm()
