"""Results that earlier versions stored name their classes by path: a class that moves is a cache that misses."""

import json

import pytest
from prefect.serializers import JSONSerializer

ARTIFACT = {"uri": "/store/artifacts/prompts/26401ed6e8df20e4", "fingerprint": "6030", "num_rows": 2, "facts": {}}
PROMPT_SETS = {
    "train": ARTIFACT,
    "train_metadata": ARTIFACT,
    "held_out": ARTIFACT,
    "held_out_metadata": ARTIFACT,
    "facts": {"rows_read": 4},
}

ROLLOUTS = {"shards": (ARTIFACT,), "metadata": (ARTIFACT,), "sampling": None, "facts": {"failed": 0}}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("stillhouse.types.Artifact", ARTIFACT),
        ("tasks.prompts.PromptSets", PROMPT_SETS),
        ("tasks.rollouts.Rollouts", ROLLOUTS),
    ],
)
def test_a_stored_result_is_read_by_the_path_of_its_class(path: str, data: object) -> None:
    stored = json.dumps({"__class__": path, "data": data}).encode()
    result = JSONSerializer(jsonlib="json").loads(stored)
    assert result.model_dump() == data
