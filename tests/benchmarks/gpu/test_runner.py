import json
import re
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.plan import Job, Row
from benchmarks.gpu.results import Measurement, Results
from benchmarks.gpu.runner import Runner, Setting

MACHINE = {"device_type": "cpu", "tiny": True}
KERNELS = Job("truth", "kernels", "kernels", (Row("8-bit and 4-bit kernels", 10), Row("torch.compile", 20)))


def run(folder: Path, *jobs: Job, budget_s: float = 60.0, tiny: bool = True) -> list[str]:
    """What is printed by a run of the jobs."""
    lines: list[str] = []
    Runner(Results(folder), Setting("cpu", tiny, commit="c0ffee"), lines.append).run(jobs, budget_s=budget_s)
    return lines


def broken(name: str, row: str) -> Job:
    """A job whose process dies."""
    return Job("truth", name, "kernels", (Row(row, 10),))


def test_a_row_is_measured_in_a_process_and_written_with_its_machine(tmp_path: Path) -> None:
    lines = run(tmp_path, replace(KERNELS, rows=KERNELS.rows[:1]), budget_s=120.0)
    row = json.loads((tmp_path / "truth.json").read_text())["8-bit and 4-bit kernels"]
    assert row["status"] == "unavailable"
    assert row["reason"] == "bitsandbytes is used on CUDA alone"
    assert row["machine"]["commit"] == "c0ffee"
    assert {"device", "torch", "transformers", "python"} <= row["machine"].keys()
    assert lines == ["truth, 8-bit and 4-bit kernels: unavailable: bitsandbytes is used on CUDA alone"]


def test_a_second_call_goes_on_with_what_is_missing_and_then_with_what_failed(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.put("truth", "8-bit and 4-bit kernels", Measurement("measured", MACHINE, {"figure": 1.0}))
    results.put("truth", "torch.compile", Measurement("failed", MACHINE, reason="exit 1"))
    measured = replace(KERNELS, rows=KERNELS.rows[:1])
    lines = run(tmp_path, measured, broken("no such job", "torch.compile"), broken("not there either", "peaks"))
    said = [line for line in lines if not line.startswith(" ")]
    assert [line.split(":")[0] for line in said] == ["truth, peaks", "truth, torch.compile"]
    log = lines[-1]
    assert "Traceback" in log
    assert "StopIteration" in log


def test_a_process_that_dies_is_explained_by_its_last_words(tmp_path: Path) -> None:
    run(tmp_path, broken("no such job", "peaks"))
    measurement = Results(tmp_path).rows("truth")["peaks"]
    assert measurement.status == "failed"
    assert re.match("exit 1: .*StopIteration", measurement.reason or "", re.DOTALL)


def test_a_process_that_outlasts_the_budget_is_ended(tmp_path: Path) -> None:
    run(tmp_path, Job("models", "demo", "demo", (Row("demo", 90),)), budget_s=2.0)
    measurement = Results(tmp_path).rows("models")["demo"]
    assert measurement.status in ("failed", "partial")
    assert measurement.reason == "stopped after 2 s"
