"""Logs of inspect_ai; `inspect_log.json` is what 0.3.285 wrote of a task of ours, cut down to what a score rests on.

Three questions in two epochs by two scorers: of one question every epoch failed, and another is right in one epoch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError, InputError
from stillhouse.evaluation.suites import read_log, source_of

LOG = json.loads(Path(__file__).with_name("inspect_log.json").read_text())


def written(folder: Path, change: Callable[[Any], object] = lambda log: None) -> Path:
    log = json.loads(json.dumps(LOG))
    change(log)
    (folder / "log.json").write_text(json.dumps(log))
    return folder


def test_a_log_gives_each_sample_the_mean_of_its_epochs_and_says_why_another_has_no_score(tmp_path: Path) -> None:
    scores, failures, facts = read_log(written(tmp_path))
    assert scores == {"q10": 1.0, "q11": 0.5}
    assert failures == ["RuntimeError('no room for the question')"]
    assert facts == {
        **{"prompt_tokens": 116, "completion_tokens": 77, "scorer": "includes"},
        "reported": {"accuracy": 0.75, "stderr": 0.25},
    }


def test_of_a_score_of_several_values_the_first_counts(tmp_path: Path) -> None:
    def change(log: Any) -> None:
        log["reductions"][0]["samples"][0]["value"] = {"strict": 0, "loose": 1}

    assert read_log(written(tmp_path, change))[0]["q10"] == 0.0


def test_a_sample_that_was_left_unscored_is_no_wrong_one(tmp_path: Path) -> None:
    def change(log: Any) -> None:
        log["reductions"][0]["samples"][0]["value"] = float("nan")

    scores, failures, _ = read_log(written(tmp_path, change))
    assert scores == {"q11": 0.5}
    assert failures[0] == "the scorer gave no score"


@pytest.mark.parametrize("value", [7, -0.5, "good"])
def test_a_score_that_is_no_share_is_refused_with_the_sample_and_the_value(tmp_path: Path, value: Any) -> None:
    def change(log: Any) -> None:
        log["reductions"][0]["samples"][1]["value"] = value

    with pytest.raises(InputError, match=f"sample q11 is scored {value!r}, expected 0 to 1"):
        read_log(written(tmp_path, change))


def test_a_task_that_failed_or_has_no_scorer_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ConnectionError: no network"):
        read_log(
            written(tmp_path, lambda log: log.update(status="error", error={"message": "ConnectionError: no network"}))
        )
    with pytest.raises(InputError, match="the task has no scorer"):
        read_log(written(tmp_path, lambda log: log.update(results={"scores": []}, samples=[])))


def test_where_every_sample_failed_the_reason_of_the_first_is_told(tmp_path: Path) -> None:
    def change(log: Any) -> None:
        # As inspect_ai writes it where its server is gone.
        log.pop("results")
        log.update(reductions=None, samples=[{"id": 1, "epoch": 1, "error": {"message": "APIConnectionError('gone')"}}])

    with pytest.raises(InputError, match=r"APIConnectionError\('gone'\)"):
        read_log(written(tmp_path, change))


def test_without_a_log_the_last_line_of_the_output_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("Traceback\nModuleNotFoundError: No module named 'antlr4'\n")
    with pytest.raises(InputError, match=r"^ModuleNotFoundError: No module named 'antlr4'$"):
        read_log(tmp_path)


def test_a_package_that_is_missing_is_named_with_its_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"needs the package (inspect_ai|no_evals): pip install (inspect_ai|no_evals)"
    ):
        source_of("inspect:no_evals/arithmetic")
