import json
from pathlib import Path

import pytest
import torch

from benchmarks.placebo import PlaceboRun, main, table, uninformative
from stillhouse.serving.models import load_model

ROOT = Path(__file__).resolve().parents[2]


def run_of(seed: int, *, promoted: bool, on_policy: float) -> PlaceboRun:
    accuracies = {"base": 0.4, "on_policy": on_policy, "placebo_shuffled": 0.3, "placebo_constant": None}
    return PlaceboRun("demo", seed, promoted, "", accuracies)


def test_the_table_counts_promotions_and_has_the_range_of_each_accuracy() -> None:
    lines = table([run_of(0, promoted=True, on_policy=0.7), run_of(1, promoted=False, on_policy=0.8)])
    assert lines[0].split() == ["teacher", "promoted", "base", "on_policy", "placebo_shuffled", "placebo_constant"]
    assert "1 of 2" in lines[1]
    assert "75.0 (70.0..80.0)" in lines[1]


def test_uninformative_teachers_are_the_student_with_noise_and_weights_drawn_anew(tmp_path: Path) -> None:
    student = load_model("embedded:student", device="cpu", dtype="float32").get_input_embeddings().weight
    noisy, other, drawn = (
        load_model(str(uninformative(kind, seed, tmp_path)), device="cpu", dtype="float32")
        .get_input_embeddings()
        .weight
        for kind, seed in (("noise", 0), ("noise", 1), ("random", 0))
    )
    distances = [float((weights - student).norm() / student.norm()) for weights in (noisy, other)]
    assert distances == pytest.approx([0.05, 0.05], rel=0.1)
    assert not torch.equal(noisy, other)
    assert float((drawn - student).norm() / student.norm()) > 0.9
    # A benchmark that goes on has the teachers that it began with.
    written = (tmp_path / "noise-0" / "model.safetensors").stat().st_mtime_ns
    uninformative("noise", 0, tmp_path)
    assert (tmp_path / "noise-0" / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_run_of_the_flow_gives_a_decision_and_the_accuracy_of_each_placebo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    small = ["prompts.max_prompts=24", "on_policy.num_steps=1", "on_policy.prompts_per_step=4"]
    small += ["evaluation.max_prompts=4", "runtime.launcher=inline"]
    overrides = [part for override in small for part in ("--set", override)]
    where = ["--config", str(ROOT / "configs" / "smoke.yaml"), "--store", str(tmp_path / "store")]
    out = tmp_path / "figures.json"
    main([*where, *overrides, "--teachers", "noise", "--seeds", "0", "--json", str(out)])
    (run,) = json.loads(out.read_text())["runs"]
    assert set(run["accuracies"]) == {"base", "on_policy", "placebo_shuffled", "placebo_constant"}
    assert not run["promoted"]
    assert "the placebo with shuffled scores" in run["verdict"] or "promotion.min_prompts" in run["verdict"]
