import json
from pathlib import Path
from typing import Any

import datasets
import httpx
import pytest
from huggingface_hub import DatasetCard

from stillhouse.dataset.read import read_rows
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import ConfigError, InputError, StoreError
from stillhouse.interop.export import export_dataset, push_to_hub


def test_the_folder_loads_by_its_name_alone_with_its_splits(dataset: Path, tmp_path: Path) -> None:
    assert export_dataset(dataset, tmp_path / "hub", "hf").num_rows == 4
    loaded = datasets.load_dataset(str(tmp_path / "hub"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 3, "validation": 1}
    expected = [row["messages"] for row in read_rows(dataset, "train")]
    assert json.dumps(list(loaded["train"]["messages"])) == json.dumps(expected)


def test_a_split_without_rows_is_left_out_since_nobody_could_load_it(dataset: Path, tmp_path: Path) -> None:
    with TableWriter(dataset / "validation.parquet", COLUMNS):
        pass
    assert export_dataset(dataset, tmp_path / "hub", "hf").num_rows == 3
    loaded = datasets.load_dataset(str(tmp_path / "hub"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 3}
    with pytest.raises(InputError, match="validation"):
        export_dataset(dataset, tmp_path / "empty", "hf", splits=["validation"])


def test_the_card_keeps_what_it_says_and_names_the_files_where_they_lie_now(dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "hub", "hf", splits=["rejected"])
    card = DatasetCard.load(tmp_path / "hub" / "README.md")
    assert card.data.license == "mit"
    assert card.text.strip() == "# Sums\n\nA card."
    files = [{"split": "rejected", "path": "data/rejected-00000-of-00001.parquet"}]
    assert card.data.to_dict()["configs"][0] == {"config_name": "default", "data_files": files}


def test_a_folder_that_is_there_is_left_alone(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    with pytest.raises(ConfigError, match="already"):
        export_dataset(dataset, tmp_path / "hub", "hf")
    assert list((tmp_path / "hub").iterdir()) == []


def test_a_dataset_without_a_card_is_refused_and_nothing_is_left(dataset: Path, tmp_path: Path) -> None:
    (dataset / "README.md").unlink()
    with pytest.raises(InputError, match="card"):
        export_dataset(dataset, tmp_path / "hub", "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["dataset"]


def test_a_push_uploads_what_the_folder_form_holds_in_one_commit(hub: Any, dataset: Path, tmp_path: Path) -> None:
    assert push_to_hub(dataset, "me/sums", private=True, api=hub) == "https://hub/me/sums"
    assert hub.made == [("me/sums", {"private": True, "repo_type": "dataset", "exist_ok": True})]
    assert [(commit["repo_id"], commit["repo_type"]) for commit in hub.commits] == [("me/sums", "dataset")]
    export_dataset(dataset, tmp_path / "hub", "hf")
    paths = [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]
    assert hub.files == {str(path.relative_to(tmp_path / "hub")): path.read_bytes() for path in paths}


def test_nothing_private_goes_to_a_repository_that_is_public_already(hub: Any, dataset: Path) -> None:
    hub.public = True
    with pytest.raises(StoreError, match="public"):
        push_to_hub(dataset, "me/sums", private=True, api=hub)
    assert hub.commits == []


def test_a_hub_that_cannot_be_reached_is_a_store_error(dataset: Path) -> None:
    class Down:
        def create_repo(self, repository: str, **asked: Any) -> str:
            raise httpx.ConnectError("no route")

    hub: Any = Down()
    with pytest.raises(StoreError, match=r"me/sums .*: no route"):
        push_to_hub(dataset, "me/sums", private=False, api=hub)


def test_without_a_token_nothing_is_asked(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        push_to_hub(dataset, "me/sums", private=False)
