from typing import Any

from benchmarks.gpu.page import page
from benchmarks.gpu.plan import plan
from benchmarks.gpu.results import Measurement

H200 = {"device_type": "cuda", "device": "NVIDIA H200", "torch": "2.11.0", "commit": "c0ffee", "tiny": False}
JOBS = plan(with_model=True)


def measured(**figures: Any) -> Measurement:
    return Measurement("measured", H200, figures)


def test_without_a_measurement_the_page_says_so_and_lists_every_row() -> None:
    text = page(JOBS, {})
    assert "Nothing has been measured yet" in text
    for job in JOBS:
        for row in job.rows:
            assert row.name in text.split("## Is it right?")[1]
    assert "Not run: peaks; packed flash attention; " in text


def test_the_better_variant_is_held_against_the_goal() -> None:
    rows = {
        "8B at 4,096, ours compiled": measured(mfu=0.52, tokens_per_s=21_000.0),
        "8B at 4,096, ours plain": measured(mfu=0.41),
        "0.6B at 16,384, ours plain": measured(mfu=0.3),
    }
    lines = page(JOBS, {"sft": rows}).splitlines()
    eight, small, middle = (
        next(line for line in lines if line.startswith(f"| SFT, {size}")) for size in ("8B", "0.6B", "1.7B")
    )
    assert eight.endswith("| at least 50.0% | 52.0% | yes |")
    assert small.endswith("| at least 40.0% | 30.0% | no |")
    assert middle.endswith("| not run |  |")


def test_device_versions_and_commit_stand_above_the_figures_and_failures_have_their_reason() -> None:
    failed = Measurement("failed", H200, {}, "RuntimeError: no kernel image")
    text = page(JOBS, {"truth": {"peaks": measured(bf16_tflops=788.0), "decoding attention": failed}})
    assert "- device NVIDIA H200, torch 2.11.0, commit c0ffee" in text
    assert "Nothing has been measured" not in text
    assert "- decoding attention: failed: RuntimeError: no kernel image" in text


def test_rows_with_the_same_figures_share_a_table() -> None:
    rows = {
        "peaks": measured(bf16_tflops=788.0),
        "head, cross_entropy, float32": measured(loss_difference=1e-7),
        "head, cross_entropy, bfloat16": measured(loss_difference=2e-6),
    }
    tables = page(JOBS, {"truth": rows}).split("## Is it right?")[1].split("\n\n")[1:3]
    assert [table.splitlines()[0] for table in tables] == ["|  | bf16_tflops |", "|  | loss_difference |"]
    assert len(tables[1].splitlines()) == 4
