"""`stillhouse init`: what it writes runs, through the flow that it says, and overwrites nothing."""

import json
from pathlib import Path
from typing import get_args

import pyarrow.parquet as pq
import pytest
import yaml

from flows.verbs.project import init
from stillhouse.config import load_config, parse_config
from stillhouse.errors import ConfigError
from stillhouse.project import Template, create_project

TEMPLATES = get_args(Template)
FILES = {
    "config.yaml",
    "prompts.jsonl",
    "tools.py",
    "rewards.py",
    "README.md",
    ".gitignore",
    ".env.example",
    "test_project.py",
}
TINY = {
    "prompts.max_prompts": 12,
    "rollouts.num_samples": 1,
    "sft.num_epochs": 1,
    "evaluation.max_prompts": 2,
    "runtime.launcher": "inline",
    "tracking.enabled": False,
}


@pytest.mark.slow
def test_the_project_runs_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the template `on-policy` runs in tests/flows/test_metrics_page.py."""
    from flows.distill import distill

    create_project(tmp_path, "sft")
    monkeypatch.chdir(tmp_path)
    published = distill(load_config(Path("config.yaml"), [f"{key}={json.dumps(value)}" for key, value in TINY.items()]))
    assert list(published.students) == ["sft"]
    assert published.dataset is not None
    rows = pq.read_table(Path(published.dataset.uri) / "train.parquet").to_pylist()
    assert any("calculator" in row["tool_names"] for row in rows)
    scores = [json.loads(row["scores"]) for row in rows]
    assert all(score["reward/right"] == 1.0 and score["reward/sparing"] >= 0.5 for score in scores)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_lines_for_models_of_ones_own_fit_the_config(template: Template, tmp_path: Path) -> None:
    create_project(tmp_path, template)
    body = yaml.safe_load((tmp_path / "config.yaml").read_text())
    blocks = (tmp_path / "README.md").read_text().split("```yaml\n")[1:]
    assert len(blocks) == 2
    for block in blocks:
        sections = yaml.safe_load(block.split("```")[0])
        changed = {**body, **{name: {**body.get(name, {}), **section} for name, section in sections.items()}}
        if "teacher" in sections:
            changed["on_policy"] = {"enabled": False}
        parse_config(changed, origin="README.md")


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"tools\.py"):
        create_project(tmp_path, "sft")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("tools.py", "mine")]


def test_a_folder_with_other_files_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("mine")
    create_project(tmp_path, "sft")
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"LICENSE"}
    assert (tmp_path / "LICENSE").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ConfigError, match="file"):
        create_project(tmp_path / "taken", "sft")


def test_it_says_what_it_wrote_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path / "new" / "project")
    lines = capsys.readouterr().out.splitlines()
    assert {Path(line).name for line in lines[:-2]} == FILES
    assert lines[-1] == f"next: cd {tmp_path}/new/project && stillhouse distill config.yaml"


def test_a_wrong_template_names_the_right_ones(cli, tmp_path: Path) -> None:
    done = cli("init", "new", "--template", "agentic", cwd=tmp_path)
    assert done.returncode == 2
    assert all(template in done.stderr for template in TEMPLATES)
    assert not (tmp_path / "new").exists()
