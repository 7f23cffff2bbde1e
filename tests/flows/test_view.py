"""From a run to the page of its trajectories, by each of the run's names."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import parse_config
from stillhouse.report.view.page import COLUMNS
from tests.provider import SimulatedProvider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, embedded_rows: list[dict[str, Any]], knowing_teacher) -> Path:
    """Return the store of a run that sampled eight prompts and made a dataset of them."""
    from flows.generate import generate

    folder = tmp_path_factory.mktemp("viewed")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in embedded_rows))
    with SimulatedProvider(knowing_teacher) as provider:
        generate(
            parse_config(
                {
                    "prompts": {"source": str(prompts), "held_out_fraction": 0.0},
                    "teacher": {"model": "simulated", "base_url": provider.url},
                    "tools": {"builtin": ["calculator"]},
                    "dataset": {"labels": {"render": False}, "validation_fraction": 0.0},
                    "runtime": {"store": str(folder / "runs"), "api_key_env": "STILLHOUSE_TEST_KEY"},
                },
                origin="test",
            )
        )
    return folder / "runs"


def _index(page: Path) -> list[dict[str, Any]]:
    (packed,) = re.findall(r'id="index">([^<]*)<', page.read_text(encoding="utf-8"))
    return [dict(zip(COLUMNS, line, strict=True)) for line in json.loads(gzip.decompress(base64.b64decode(packed)))]


def test_a_run_is_viewed_by_each_of_its_names(cli, store: Path, tmp_path: Path) -> None:
    (record,) = [json.loads(path.read_text()) for path in store.glob("reports/*/run.json")]
    names = ["latest", record["mlflow_run_id"], record["prefect_flow_run_id"], record["prefect_flow_run_name"]]
    names += record["artifacts"]["rollouts"]
    for number, name in enumerate(names):
        page = tmp_path / f"{number}.html"
        done = cli("view", name, "--store", store, "--no-open", "-o", page, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{page}: 8 trajectories\n"), done.stderr
        rows = _index(page)
        assert {row["tools"][0] for row in rows if row["tools"]} == {"calculator"}
        assert {row["outcome"] for row in rows} == (
            {"unverified"} if name in record["artifacts"]["rollouts"] else {"right"}
        )
    dataset = tmp_path / "dataset.html"
    done = cli("view", record["artifacts"]["dataset"][0], "--no-open", "-o", dataset, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["kept"] for row in _index(dataset)} == {True}


def test_the_page_is_kept_in_the_store_and_opened(cli, store: Path, tmp_path: Path) -> None:
    told = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho $1 > {told}\n")
    browser.chmod(0o755)
    args = ["view", "--store", store, "--max-rows", "3"]
    done = cli(*args, cwd=tmp_path, env={"BROWSER": f"{browser} %s"})
    assert done.returncode == 0, done.stderr
    (page,) = store.glob("views/*.html")
    assert done.stdout == f"{page}: 3 trajectories; there are more, which --max-rows lets in\n"
    assert told.read_text().strip() == page.as_uri()
