from pathlib import Path
from typing import Any

import pytest

from stillhouse.training.results.record import StudentRecord
from stillhouse.types import Artifact
from tasks.governance.promotion import student_version

STUDENT = {"model": "org/small", "parameters": "lora", "dtype": "float32"}


@pytest.fixture
def student(tmp_path: Path) -> Artifact:
    folder = tmp_path / "artifacts/on_policy/0123"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    first = StudentRecord(
        method="sft",
        base="org/small",
        started_from="org/small",
        config={"student_ref": "org/small", "student": STUDENT, "sft": {}},
        facts={},
        data={"fingerprint": "d1"},
    )
    config = {"student_ref": "4567@89", "student": STUDENT, "on_policy": {}}
    update: dict[str, Any] = {"method": "on_policy", "config": config, "data": {"fingerprint": "p1"}}
    first.model_copy(update={**update, "teachers": ("org/big",), "before": first}).write(folder)
    return Artifact(uri=str(folder), fingerprint="f", num_rows=0, facts={})


def test_a_student_is_registered_by_its_weights_with_what_it_is(student: Artifact) -> None:
    version = student_version(student, {"accuracy": 0.8125})
    assert version.tags == {
        "method": "on_policy",
        "base": "org/small",
        "parameters": "lora",
        "data": "p1",
        "accuracy": "0.812",
    }
    assert version.description == (
        "81.2% right on held-out prompts: org/small after supervised fine-tuning, then on-policy distillation with "
        "org/big as teacher"
    )
    again = student_version(student.model_copy(update={"fingerprint": "g"}), {})
    assert again.fingerprint == version.fingerprint
    assert "accuracy" not in again.tags
    (Path(student.uri) / "model.safetensors").write_bytes(b"other weights")
    assert student_version(student, {}).fingerprint != version.fingerprint
