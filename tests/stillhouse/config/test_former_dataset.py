"""Keys of stored labels, datasets and rollouts up to a target are those of configs in the form of version 0.1."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DatasetConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.acceptance import Acceptance
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.store import digest
from stillhouse.types import JsonObject

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "curated": {
        "labels": {"file": "labels.py"},
        "duplicates": {"earlier": ["last_month"]},
        "filters": {
            "languages": ["en"], "drop_refusals": True, "drop_private": ["secret", "email"], "max_repetition": 0.3,
            "scores": {"judge/clarity": [0.6, None]}, "duplicates": "near",
        },
        "selection": {"rows_per_prompt": 1, "target_rows": 100, "max_candidates": 600},
    },
    "ranges": {
        "labels": {"render": False, "student_samples": 4},
        "filters": {
            "drop_wrong": False, "keep_unverified": False, "max_tool_errors": 1, "turns": [2, 8],
            "answer_chars": [1, 4000], "min_compression_ratio": 0.1, "check_format": False,
            "scores": {"reward": [0.5, None], "reward/short": [0.1, 0.9], "length": [None, 100.0]},
            "student_nll": [0.1, 3.0], "student_pass_rate": [0.1, 0.9], "duplicates": "exact",
            "contamination_ngrams": 13,
        },
        "selection": {"pass_rate": [0.1, 0.9], "prefer": "score:reward", "quotas": {"sums": 3}},
    },
    "open": {
        "filters": {"turns": [2, None], "student_nll": [None, 3.0], "contamination_ngrams": None},
        "selection": {"pass_rate": [None, 0.5], "prefer": "shortest"},
    },
    "measured": {
        "labels": {"measure": ["language", "privacy", "student_nll", "rewards", "near_duplicates"]},
        "duplicates": {"threshold": 0.8},
    },
}  # fmt: skip
DATASET = {
    "plain": "4e36c2a68d4263abd467a40db99c4b94beefd81280ad33d466e14f0468d507dc",
    "curated": "98e8a5784a4f4447ed7b24f013c6cd8c909542569150f998148a5a3bc1aac7dd",
    "ranges": "1ba3dd821f1674c99ad27e2a456f63a61175b750299a44099707d074ff3ae859",
    "open": "540061e9f11693c5ef3e1101308f1918fb45d508d5f90daa77b03d4a32283013",
    "measured": "e0cb3b204de70a658e62fe276d602b31a5d3752c530b3984835624dade486e94",
}
LABELLING = {
    "plain": "9d8d0e7544b087a7a89e3b7e48276695f2b509e8f05183e45cbbaa8d012f1f17",
    "curated": "22a4577f30b9390cd2cd84df8d511a109a9a2e62649286ee7f5cb02704c3c9c9",
    "ranges": "bba481fbc5cd90ea0fc1a16ea49d94ad6771ac48c57b24319950b5a8d028ae98",
    "open": "113f4017780579655fb403c5855682a0df75c8e0cb66bf49dec8534ad94f226a",
    "measured": "f4c36736f4a315a1e1be8a876ef84c1410b23758847209abf9e3eda7b4243279",
}
DUPLICATES = {
    "plain": "037890d3891ae37b3c5146d9568ac8429a75955cb08b2ee052e7cd9270944f64",
    "curated": "4be29461a7dff0f4ea58171538d0e7652e626e301256ad0524682c08fc3eb773",
    "ranges": "037890d3891ae37b3c5146d9568ac8429a75955cb08b2ee052e7cd9270944f64",
    "open": "037890d3891ae37b3c5146d9568ac8429a75955cb08b2ee052e7cd9270944f64",
    "measured": "3722d79c1f6c1971b495cd23b05b863159c3a1cbc55cd0696a392226dce6bb87",
}
TARGETS = {
    "plain": "52609f167527b074ac12ae41a37620cfea89c2b423f9a7b48f9abe73bc6567b5",
    "curated": "112e486b774a439827cd95f4375432f5acebe8c1a3871b2183f02db104cebc90",
    "ranges": "650d876ea9364aeccf4fca7437811464758f4c05dc52dd87b005160b47794f9b",
    "open": "a662ba301b71138b970a318a1dd0a02cd6a971a2b41a9c35af64028e6e6a58eb",
}
"""With the fields that were removed from the section since."""


def labelling(dataset: DatasetConfig, **sampling: str) -> Labelling:
    tools = ToolsConfig(rewards_file="rewards.py")
    return Labelling.of(dataset, tools=tools, student=StudentConfig(), **sampling)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_in_its_new_form_finds_what_the_old_form_stored(name: str) -> None:
    dataset = DatasetConfig.model_validate(CONFIGS[name])
    assert digest(dataset.identity()) == DATASET[name]
    assert digest(labelling(dataset, sampling="s").identity()) == LABELLING[name]
    assert digest(dataset.comparison.identity()) == DUPLICATES[name]


@pytest.mark.parametrize("name", TARGETS)
def test_rollouts_up_to_a_target_are_found_again(name: str) -> None:
    dataset = DatasetConfig.model_validate(CONFIGS[name])
    acceptance = Acceptance(labelling=labelling(dataset), dataset=dataset, max_tokens=100)
    assert digest(acceptance.identity()) == TARGETS[name]


def test_a_label_of_later_and_a_length_of_overlaps_that_is_looked_for_enter_the_keys(tmp_path: Path) -> None:
    def key(filters: dict[str, Any], **sets: str) -> JsonObject:
        return labelling(DatasetConfig(filters=filters, contamination=sets)).identity()

    exam = {"exam": str(tmp_path / "exam.txt")}
    Path(exam["exam"]).touch()
    assert key({"max_mixed_scripts": 0.1})["labels"] == {**key({})["labels"], "measure": ["mixed_scripts"]}
    assert key({"contamination_ngrams": 10}) == key({})
    assert key({"contamination_ngrams": 10}, **exam)["contamination"] == {"sets": exam, "ngrams": [8, 10, 13]}
