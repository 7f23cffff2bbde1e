"""Two machines, each a process with an empty folder of its own, that share a store on S3 alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig
from stillhouse.store.records import write_jsonl
from stillhouse.training.results.record import read_record
from tests.provider import SimulatedProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Rows = list[dict[str, Any]]
URL = "s3://bucket/team"


def keys(s3: Any, prefix: str) -> list[str]:
    found = s3.client().list_objects_v2(Bucket="bucket", Prefix=f"team/{prefix}").get("Contents", ())
    return [entry["Key"] for entry in found]


@pytest.fixture
def machine(
    s3, provider: SimulatedProvider, tmp_path: Path, smoke_config, embedded_rows: Rows, little_training: dict[str, Any]
) -> Callable[..., DistillConfig]:
    """Return the config of a run on the machine of that name."""
    prompts = tmp_path / "prompts.jsonl"
    write_jsonl(prompts, embedded_rows)
    common = {
        **little_training,
        "prompts__source": str(prompts),
        "teacher__base_url": provider.url,
        "runtime__store": URL,
    }
    return lambda name, **changes: smoke_config(
        Path("unused"), **{**common, "runtime__scratch": str(tmp_path / name), **changes}
    )


def test_what_one_machine_finished_another_takes_and_what_the_storage_lost_it_makes_again(
    s3, provider: SimulatedProvider, machine, tmp_path: Path, cli
) -> None:
    from flows.train_sft import train_sft

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


def test_a_champion_that_is_an_adapter_is_trained_on_by_another_machine(machine, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from flows.train_sft import train_sft

    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    settings = {
        "student__parameters": "lora",
        "tracking__uri": database,
        "tracking__register_as": "shop",
        "promotion__start_from_champion": True,
    }
    first = train_sft(machine("first", **settings))
    MlflowClient(database).set_registered_model_alias("shop", "champion", "1")
    second = train_sft(machine("second", **settings))
    student = Path(second.students["sft"].uri)
    record = read_record(student)
    assert record.base == "embedded:student"
    assert Path(record.started_from).is_relative_to(tmp_path / "second")
    assert model_identity(record.started_from) == model_identity(first.students["sft"].uri)
    assert json.loads((student / "adapter_config.json").read_bytes())["base_model_name_or_path"] == "embedded:student"
