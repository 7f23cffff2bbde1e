"""Two machines, each a process with an empty folder of its own, that share a store on S3 alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider
from stillhouse.config import DistillConfig
from stillhouse.store.records import write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Rows = list[dict[str, Any]]
URL = "s3://bucket/team"


def keys(s3: Any, prefix: str) -> list[str]:
    found = s3.client().list_objects_v2(Bucket="bucket", Prefix=f"team/{prefix}").get("Contents", ())
    return [entry["Key"] for entry in found]


def test_what_one_machine_finished_another_takes_and_what_the_storage_lost_it_makes_again(
    s3: Any,
    tmp_path: Path,
    smoke_config: Callable[..., DistillConfig],
    embedded_rows: Rows,
    knowing_teacher: Callable[[Asked], Reply],
    cli: Callable[..., Any],
) -> None:
    from flows.train_sft import train_sft

    prompts = tmp_path / "prompts.jsonl"
    write_jsonl(prompts, embedded_rows)
    with SimulatedProvider(knowing_teacher) as provider:

        def machine(name: str) -> DistillConfig:
            return smoke_config(
                Path("unused"),
                prompts__source=str(prompts),
                prompts__held_out_fraction=0.0,
                teacher__model="simulated",
                teacher__base_url=provider.url,
                dataset__validation_fraction=0.0,
                sft__batch_size=4,
                on_policy__enabled=False,
                evaluation__enabled=False,
                runtime__api_key_env="STILLHOUSE_TEST_KEY",
                runtime__shard_size=4,
                runtime__store=URL,
                runtime__scratch=str(tmp_path / name),
            )

        first = train_sft(machine("first"))
        assert not any(first.cached.values())
        num_billed = provider.num_billed
        assert num_billed > 0
        assert any(key.endswith("report.html") for key in keys(s3, "reports/"))
        assert any(key.endswith("student/model.safetensors") for key in keys(s3, "mlartifacts/"))

        body = tmp_path / "second.yaml"
        body.write_text(json.dumps(machine("second").model_dump(mode="json")))
        done = cli("sft", body, cwd=tmp_path, timeout_s=900)
        assert done.returncode == 0, done.stderr
        assert provider.num_billed == num_billed
        reports = sorted((tmp_path / "second" / "reports").iterdir())
        record = json.loads((reports[-1] / "run.json").read_bytes())
        student = Path(record["artifacts"]["sft"][0])
        assert student.is_relative_to(tmp_path / "second")
        name = "model.safetensors"
        assert (student / name).read_bytes() == (Path(first.students["sft"].uri) / name).read_bytes()

        [lost] = [key for key in keys(s3, "artifacts/dataset/") if key.endswith("train.parquet")]
        s3.client().delete_object(Bucket="bucket", Key=lost)
        third = train_sft(machine("third"))
        assert provider.num_billed == num_billed
        assert {stage for stage, cached in third.cached.items() if not cached} == {"dataset"}
        assert third.students["sft"].fingerprint == first.students["sft"].fingerprint
        assert lost in keys(s3, "artifacts/dataset/")
