"""What a Kubernetes cluster is asked for."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import KubernetesConfig, RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.manifest import job_manifest

TEMPLATE = """
metadata:
  labels: {team: language}
spec:
  nodeSelector: {gpu: h100}
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  containers:
    - image: registry/stillhouse@sha256:1
      env: [{name: HF_HOME, value: /data/hub}]
      resources: {limits: {rdma/ib: 1}}
"""


def manifest(sft_job, tmp_path: Path, kubernetes: KubernetesConfig, **runtime: Any) -> dict[str, Any]:
    machine = RuntimeConfig(launcher="kubernetes", store=str(tmp_path), kubernetes=kubernetes, **runtime)
    job = sft_job(tmp_path).model_copy(update={"runtime": machine})
    return job_manifest(Attempt(job.work_dir, "stillhouse-sft-1"), job)


def container(body: dict[str, Any]) -> dict[str, Any]:
    return body["spec"]["template"]["spec"]["containers"][0]


def test_each_host_is_a_pod_that_is_never_tried_again_by_kubernetes(sft_job, tmp_path: Path):
    spec = manifest(sft_job, tmp_path, KubernetesConfig(image="i:1"), num_hosts=4, num_processes=8)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_processes": 8}, {"nvidia.com/gpu": "8"}),
        ({"num_processes": 8, "device": "cpu"}, {}),
        ({"gpus_per_host": 2}, {"nvidia.com/gpu": "2"}),
    ],
)
def test_a_pod_asks_for_a_gpu_a_process_unless_told_otherwise(sft_job, tmp_path: Path, settings, expected):
    assert container(manifest(sft_job, tmp_path, KubernetesConfig(image="i:1"), **settings))["resources"]["limits"] == (
        expected
    )


def test_the_store_is_mounted_where_the_flow_has_it(sft_job, tmp_path: Path):
    body = manifest(sft_job, tmp_path, KubernetesConfig(image="i:1", claim="runs", memory_gib=64.0, cpus=7.5))
    volume = {"name": "stillhouse-store", "persistentVolumeClaim": {"claimName": "runs"}}
    assert volume in body["spec"]["template"]["spec"]["volumes"]
    assert {"name": "stillhouse-store", "mountPath": str(tmp_path)} in container(body)["volumeMounts"]
    assert container(body)["resources"]["requests"] == {"cpu": "7500m", "memory": "65536Mi"}
    assert container(body)["resources"]["limits"]["memory"] == "65536Mi"


def test_the_template_adds_what_it_has_and_keeps_what_it_says(sft_job, tmp_path: Path):
    file = tmp_path / "pod.yaml"
    file.write_text(TEMPLATE)
    body = manifest(
        sft_job, tmp_path, KubernetesConfig(template=str(file), secret="keys", queue="research"), num_processes=1
    )
    pod = body["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "language"
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert container(body)["image"] == "registry/stillhouse@sha256:1"
    assert {"name": "HF_HOME", "value": "/data/hub"} in container(body)["env"]
    assert container(body)["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert container(body)["resources"]["limits"] == {"rdma/ib": 1, "nvidia.com/gpu": "1"}
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"


def test_a_job_without_an_image_is_refused(sft_job, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"runtime\.kubernetes\.image is not set"):
        manifest(sft_job, tmp_path, KubernetesConfig())


def test_a_template_that_is_a_whole_job_is_refused_by_its_keys(sft_job, tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("kind: Job\nspec: {}")
    with pytest.raises(ConfigError, match=r"expected the keys `metadata` and `spec`.*\['kind', 'spec'\]"):
        manifest(sft_job, tmp_path, KubernetesConfig(template=str(file)))
