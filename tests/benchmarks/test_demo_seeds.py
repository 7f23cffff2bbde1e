import json
from pathlib import Path

import pytest

from benchmarks.demo_seeds import Accuracy, SeedRun, main, summarise

ROOT = Path(__file__).resolve().parents[2]


def run_of(seed: int, base: float, sft: float, on_policy: float) -> SeedRun:
    values = {"base": base, "sft": sft, "on_policy": on_policy, "teacher": 0.9}
    accuracies = {name: Accuracy(v, v - 0.1, v + 0.05) for name, v in values.items()}
    return SeedRun(seed, accuracies, {}, "report.html", {"sft": 9.0, "on_policy": 40.0 + seed})


def test_improvements_are_paired_by_seed() -> None:
    report = summarise([run_of(0, 0.1, 0.3, 0.6), run_of(1, 0.1, 0.5, 0.6), run_of(2, 0.1, 0.4, 0.7)])
    gained = report.improvements["on_policy over sft"]
    assert (gained.low, gained.median, gained.high) == pytest.approx((0.1, 0.3, 0.3))
    assert report.accuracies["sft"].median == pytest.approx(0.4)
    assert report.half_width == pytest.approx(0.075)
    assert "  on_policy over sft +30.0 (+10.0..+30.0)" in report.lines()
    assert "  on_policy          41.0 (40.0..42.0)" in report.lines()


def test_a_stage_left_out_has_no_improvement() -> None:
    run = run_of(0, 0.1, 0.3, 0.6)
    del run.accuracies["on_policy"]
    assert list(summarise([run]).improvements) == ["sft over base"]


@pytest.mark.slow
def test_rollouts_are_shared_and_training_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    small = ["prompts.max_prompts=24", "on_policy.num_steps=1", "on_policy.prompts_per_step=4"]
    overrides = [part for override in [*small, "evaluation.max_prompts=4"] for part in ("--set", override)]
    where = ["--config", str(ROOT / "configs" / "smoke.yaml"), "--store", str(tmp_path / "store")]
    out = tmp_path / "figures.json"
    main([*where, *overrides, "--seeds", "0", "1", "--json", str(out)])
    first, second = json.loads(out.read_text())["runs"]
    assert set(first["accuracies"]) == {"base", "sft", "on_policy", "teacher"}
    assert not any(first["cached"].values())
    assert set(first["seconds"]) == {"sft", "on_policy"}
    for stage in ("prompts", "rollouts", "dataset", "evaluation of base", "evaluation of teacher"):
        assert second["cached"][stage], stage
    for stage in ("sft", "on_policy", "evaluation of sft", "evaluation of on_policy"):
        assert not second["cached"][stage], stage
