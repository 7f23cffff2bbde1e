import json
from pathlib import Path

import pytest

from benchmarks.on_policy.gpu.__main__ import comparisons, main, measure, planned
from benchmarks.on_policy.gpu.plan import SIZES, GpuFound, GpuJob


def found(tokens_per_s: float, *losses: float) -> GpuFound:
    return GpuFound(1.0, tokens_per_s, 1.0, {}, {}, list(losses))


def test_what_trl_sampled_is_replayed_right_after_it() -> None:
    names = [job.name for job in planned(["0.6B", "1.7B"], "cuda")]
    assert names == ["0.6B ours", "0.6B trl", "0.6B replay", "1.7B ours", "1.7B trl", "1.7B replay"]


def test_both_sides_get_the_same_prompts_in_the_same_steps() -> None:
    job = GpuJob("tiny", "ours", "cpu")
    batch_size = SIZES["tiny"].batch_size
    messages = job.ordered()
    assert len(messages) == job.num_steps * batch_size
    assert sorted(map(str, messages)) == sorted(str(row["messages"]) for row in job.rows())
    assert messages != [row["messages"] for row in job.rows()]


def test_rows_of_a_step_can_be_shared_out_over_trls_microbatches() -> None:
    assert all(size.batch_size % size.microbatch_rows == 0 for size in SIZES.values())


def test_sides_are_compared_where_both_have_trained() -> None:
    several = {
        "0.6B ours": found(30.0, 9.0),
        "0.6B trl": found(10.0, 3.0, 2.5),
        "0.6B replay": found(99.0, 3.0, 2.25),
        "1.7B ours": found(20.0, 9.0),
    }
    assert comparisons(several, ["0.6B", "1.7B"]) == {
        "0.6B": {"tokens_per_s_ratio": 3.0, "loss_difference": 0.25, "losses_hold": False}
    }


def test_without_time_everything_is_left_out_and_why_is_said() -> None:
    done, left_out = measure(planned(["tiny"], "cpu"), budget_s=0.0)
    assert done == {}
    assert "were left of the budget" in left_out["tiny ours"]
    assert left_out["tiny replay"] == "TRL has sampled nothing to replay"


@pytest.mark.slow
def test_ours_is_measured_where_there_is_no_trl(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    main(["--device", "cpu", "--sizes", "tiny", "tiny-lora", "--budget-s", "200", "--json", str(out)])
    figures = json.loads(out.read_text())
    assert {"tiny ours", "tiny-lora ours"} <= figures["runs"].keys()
    assert "No module named 'trl'" in figures["left_out"]["tiny trl"]
    run = figures["runs"]["tiny ours"]
    assert run["tokens_per_s"] > 0
    assert run["split"].keys() >= run["floor"].keys() == {"sample", "score", "train"}
    assert len(run["losses"]) == 3
