import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.chat.refs import adapter_base, is_hub_id, model_identity, resolve_model
from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError


@pytest.fixture
def student(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_path("student"), tmp_path / "student"))


def test_refs_become_what_from_pretrained_takes(student: Path) -> None:
    assert resolve_model("embedded:teacher") == str(embedded_path("teacher"))
    assert resolve_model(str(student)) == str(student)
    assert resolve_model("Qwen/Qwen3-8B") == model_identity("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("ref", ["embedded:nobody", "/no/such/folder", "./no/such/folder"])
def test_a_ref_to_nothing_is_a_config_error_naming_it(ref: str) -> None:
    with pytest.raises(ConfigError, match=ref.removeprefix("embedded:")):
        resolve_model(ref)


def test_what_others_can_load_is_told_from_what_lies_here(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(student.parent)
    refs = ["Qwen/Qwen3-8B", "gpt2", "embedded:student", "/models/a", "./a/b", "a/b/c", "student"]
    assert list(filter(is_hub_id, refs)) == ["Qwen/Qwen3-8B", "gpt2"]


def test_identity_follows_content_and_not_the_record_of_how_it_was_made(student: Path) -> None:
    before = model_identity(str(student))
    assert re.fullmatch("student@[0-9a-f]{16}", before)
    (student / "metrics.jsonl").write_text("{}\n")
    (student / "student.json").write_text("{}")
    assert model_identity(str(student)) == before
    (student / "model.safetensors").write_bytes(b"other weights")
    assert model_identity(str(student)) != before


def test_identity_of_an_adapter_changes_with_its_base(student: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(student)}))
    before = model_identity(str(adapter))
    (student / "model.safetensors").write_bytes(b"other weights")
    assert model_identity(str(adapter)) != before
    assert adapter_base(adapter) == str(student)
    assert adapter_base(student) is None


def test_refs_and_template_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, stillhouse.chat.refs, stillhouse.chat.parse, stillhouse.chat.template;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
