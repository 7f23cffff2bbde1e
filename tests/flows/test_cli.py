"""The shell as its users meet it: what every verb has in common, and what is printed when something is wrong."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from flows.verbs.run_config import config_in
from stillhouse.errors import ConfigError

VERBS = [
    *("distill", "generate", "sft", "on-policy", "evaluate"),
    *("init", "test", "plan", "view", "convert", "export", "publish", "certify", "serve", "doctor", "send-tracking"),
]
WRONG = "sft:\n  lerning_rate: 1.0e-4\n  num_epochs: 0\n"
EXPLAINED = [
    "wrong.yaml: sft.lerning_rate = 0.0001: unknown key; did you mean 'learning_rate'?",
    "error[config]: wrong.yaml: sft.num_epochs = 0: expected at least 1",
]


def test_help_names_every_verb(cli, tmp_path: Path) -> None:
    done = cli("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(f" {verb} " in done.stdout for verb in VERBS)


def test_help_of_every_verb_imports_nothing_heavy() -> None:
    program = f"""
import sys
from flows.cli import run_command
for arguments in {[[], *([verb] for verb in VERBS)]!r}:
    sys.argv = ["stillhouse", *arguments, "--help"]
    try:
        run_command()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
heavy = {{"torch", "transformers", "prefect", "mlflow", "openai", "pyarrow", "pandas", "fastapi"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == 1 + len(VERBS)


def test_the_version_is_that_of_the_package(cli, tmp_path: Path) -> None:
    done = cli("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"stillhouse {version('stillhouse')}\n")


@pytest.mark.parametrize("verb", ["distill", "generate", "sft", "on-policy", "evaluate", "plan", "doctor"])
def test_every_verb_refuses_a_wrong_config_alike(shell, tmp_path: Path, verb: str) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    code, output = shell(verb, "wrong.yaml")
    assert code == 2
    assert sorted(output.splitlines()) == sorted(EXPLAINED)
    assert list(tmp_path.iterdir()) == [tmp_path / "wrong.yaml"]


def test_on_policy_from_rewards_alone_asks_for_no_teacher(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "prompts: {source: prompts.jsonl, verifier: numeric}\n"
        "on_policy: {enabled: true, algorithm: rewards, group_size: 2}\n"
    )
    assert config_in(config, (), writes=False).on_policy.algorithm == "rewards"
    with pytest.raises(ConfigError, match="no teacher is named"):
        config_in(config, ())
