import json
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.page import page
from benchmarks.gpu.plan import PARTS, plan
from benchmarks.gpu.results import Results

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_docs_is_what_its_figures_give() -> None:
    folder = ROOT / "docs" / "results" / "gpu"
    assert folder.with_name("gpu.md").read_text() == page(plan(with_model=True), Results(folder).all())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_plan_is_rehearsed_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu"
    model = ROOT / "stillhouse" / "embedded" / "student"
    main(["--device", "cpu", "--tiny", "--budget-s", "1700", "--out", str(out), "--model", str(model)])
    assert "Nothing has been measured yet" in out.with_name("gpu.md").read_text()
    for part in PARTS:
        rows = json.loads((out / f"{part}.json").read_text())
        planned = {row.name for job in plan(with_model=True, tiny=True) if job.part == part for row in job.rows}
        assert rows.keys() == planned
        # TRL and Liger may be missing here, and some kernels need CUDA.
        assert {row["status"] for row in rows.values()} <= {"measured", "unavailable"}, rows
        assert all(row["figures"] for row in rows.values() if row["status"] == "measured")
