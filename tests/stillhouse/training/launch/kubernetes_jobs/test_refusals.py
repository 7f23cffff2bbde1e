"""What keeps a job from being created is told by the setting to mend."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train

NewJob = Callable[..., TrainJob]


def test_a_refusal_names_the_rights_that_are_needed(cluster_job: NewJob, api: Any) -> None:
    job = cluster_job(namespace="secret")
    with pytest.raises(ConfigError, match=r"403.*is forbidden.*a role that may create, get and delete jobs"):
        train(job, NoProgress())


def test_a_slip_in_the_template_is_told_of_by_its_field(cluster_job: NewJob, api: Any, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {nodeSelektor: {gpu: h100}}")
    job = cluster_job(template=str(template))
    with pytest.raises(ConfigError, match=r"runtime\.kubernetes\.template.*no Kubernetes job(?s:.*)spec\.nodeSelektor"):
        train(job, NoProgress())
    assert api.num_created == 0


def test_a_cluster_that_is_nowhere_configured_is_told_of_by_its_setting(
    cluster_job: NewJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"runtime\.kubernetes\.context None: no cluster is configured"):
        train(cluster_job(), NoProgress())
