import json
import os
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from stillhouse.chat.refs import adapter_base, model_identity
from stillhouse.errors import ConfigError, InputError
from stillhouse.training.results.export import export_student, push_student

ADAPTER = {
    *("README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "dataset-card.md"),
    "generation_config.json",
    *("metrics.jsonl", "student.json", "tokenizer.json", "tokenizer_config.json"),
}
WHOLE = ADAPTER - {"adapter_config.json", "adapter_model.safetensors"} | {*("config.json", "model.safetensors")}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_student_is_written_as_adapter_or_merged_and_names_no_place(make_student, tmp_path: Path):
    folder = make_student()
    (folder / "manifest.json").write_text("{}")
    export_student(folder, tmp_path / "adapter-out", merge=False, license_id="mit", evaluations={"sft": {}})
    export_student(folder, tmp_path / "merged-out", merge=True)
    assert names(tmp_path / "adapter-out") == ADAPTER
    assert names(tmp_path / "merged-out") == WHOLE
    for out in ("adapter-out", "merged-out"):
        for file in (tmp_path / out).glob("*.[jm][sd]*"):
            assert str(tmp_path) not in file.read_text()
        assert json.loads((tmp_path / out / "student.json").read_text())["base"].startswith("base@")
    card = ModelCard.load(tmp_path / "adapter-out/README.md")
    assert card.data.license == "mit"
    assert "## Evaluation" in card.text
    assert ModelCard.load(tmp_path / "merged-out/README.md").data.library_name == "transformers"


def test_an_exported_adapter_names_its_base_by_content_and_finds_it_beside_itself(make_student, tmp_path: Path):
    out = tmp_path / "out"
    export_student(make_student(), out, merge=False)
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"].startswith("base@")
    assert adapter_base(out) == str(tmp_path / "base")
    export_student(out, tmp_path / "merged", merge=True)
    card = (tmp_path / "merged/README.md").read_text()
    assert "`base@" in card
    # Where the base is elsewhere, the adapter itself goes on its way.
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    export_student(out, tmp_path / "again", merge=False)
    assert model_identity(str(tmp_path / "again")) == model_identity(str(out)).replace("out@", "again@")
    with pytest.raises(ConfigError, match=r"base@.*/base, where nothing is"):
        export_student(out, tmp_path / "third", merge=True)
    (tmp_path / "elsewhere").rename(tmp_path / "base")
    (tmp_path / "base/generation_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"/base, where base@\w+ is"):
        adapter_base(out)


def test_all_of_several_templates_leave(make_student, tmp_path: Path):
    folder = make_student()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    written = tokenizer.chat_template
    tokenizer.chat_template = {"default": written, "tool_use": written + "{# tools #}"}
    tokenizer.save_pretrained(folder)
    export_student(folder, tmp_path / "out", merge=False)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == tokenizer.chat_template


def test_an_adapter_of_an_earlier_version_leaves_with_its_ends(make_student, tmp_path: Path):
    folder = make_student()
    (folder / "generation_config.json").unlink()
    export_student(folder, tmp_path / "out", merge=False, copy=os.symlink)
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == [2]
    assert not (folder / "generation_config.json").exists()


def test_weights_merged_by_training_are_taken_as_they_are(make_student, tmp_path: Path):
    folder = make_student(merge=True)
    (folder / "merged/model.safetensors").write_bytes(b"what training checked")
    export_student(folder, tmp_path / "out", merge=True, copy=os.symlink)
    assert (tmp_path / "out/model.safetensors").read_bytes() == b"what training checked"
    # The card of the student itself is none the other for it.
    assert not (folder / "merged/README.md").is_symlink()
    assert not (tmp_path / "out/README.md").is_symlink()
    assert (folder / "merged/student.json").read_text() != (tmp_path / "out/student.json").read_text()


def test_what_cannot_be_written_is_refused_before_anything_is(make_student, tmp_path: Path):
    folder = make_student(merge=True)
    with pytest.raises(ConfigError, match="already"):
        export_student(folder, folder, merge=False)
    with pytest.raises(ConfigError, match="no adapter"):
        export_student(folder / "merged", tmp_path / "out", merge=True)
    with pytest.raises(InputError, match=r"student\.json"):
        export_student(tmp_path, tmp_path / "out", merge=False)
    assert not (tmp_path / "out").exists()


def test_a_push_is_one_commit_that_leaves_no_other_weights_in_the_repository(hub: Any, make_student, tmp_path: Path):
    export_student(make_student(), tmp_path / "out", merge=True, copy=os.symlink)
    assert push_student(tmp_path / "out", "me/small", private=True, api=hub) == "https://hub/me/small"
    assert hub.made == [("me/small", {"private": True, "repo_type": "model", "exist_ok": True})]
    (commit,) = hub.commits
    assert (commit["repo_id"], commit["repo_type"]) == ("me/small", "model")
    assert {"*.safetensors*", "*.json"} <= set(commit["delete_patterns"])
    assert set(hub.files) == WHOLE
    assert hub.files["README.md"] == (tmp_path / "out/README.md").read_bytes()


def test_an_adapter_whose_base_nobody_else_has_is_not_pushed(hub: Any, make_student):
    with pytest.raises(ConfigError, match="--merge"):
        push_student(make_student(), "me/small", private=False, api=hub)
    assert hub.made == []
