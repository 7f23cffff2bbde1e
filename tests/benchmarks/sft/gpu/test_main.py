import json
from pathlib import Path

import pytest

from benchmarks.sft.gpu.__main__ import loss_differences, main, planned
from benchmarks.sft.gpu.plan import SIZES, GpuFound, GpuJob, num_tokens


def test_sides_take_turns_and_extras_come_last() -> None:
    names = [job.name for job in planned(["0.6B", "8B"], "cuda", num_rounds=2)]
    assert names[:4] == ["0.6B ours plain", "0.6B trl plain"] * 2
    assert names[8:] == ["0.6B ours compiled", "8B ours compiled", "0.6B trl packed", "8B trl packed"]


def test_a_step_has_some_16000_tokens_of_which_half_are_learnt() -> None:
    batches = GpuJob("0.6B", "ours", "plain", "cuda").batches()
    assert {len(batch) for batch in batches} == {SIZES["0.6B"].batch_size}
    assert num_tokens(batches) / len(batches) == pytest.approx(16_000, rel=0.1)
    learnt = sum(sum(sample.loss_mask) for batch in batches for sample in batch)
    assert learnt / num_tokens(batches) == pytest.approx(0.5, abs=0.05)
    assert batches == GpuJob("0.6B", "trl", "packed", "cuda").batches()


def test_losses_are_compared_where_both_sides_have_some() -> None:
    def found(*losses: float) -> list[GpuFound]:
        return [GpuFound(1.0, 1.0, 0.5, 1.0, 1.0, list(losses))]

    several = {"8B ours plain": found(3.0, 2.5), "8B trl plain": found(3.0, 2.25), "1.7B ours plain": found(3.0, 2.0)}
    assert loss_differences(several, ["8B", "1.7B"]) == {"8B": 0.25}


@pytest.mark.slow
def test_ours_is_measured_where_there_is_no_trl(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    main(["--device", "cpu", "--sizes", "tiny", "tiny-lora", "--rounds", "1", "--budget-s", "100", "--json", str(out)])
    figures = json.loads(out.read_text())
    assert {"tiny ours plain", "tiny-lora ours plain"} <= figures["runs"].keys()
    assert "No module named 'trl'" in figures["left_out"]["tiny trl plain"]
    (run,) = figures["runs"]["tiny ours plain"]
    assert 0 < run["mfu"] < 1
    assert run["tokens_per_s"] > 0
    assert len(run["losses"]) == 11
