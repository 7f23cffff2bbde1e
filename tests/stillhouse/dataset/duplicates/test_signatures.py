import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stillhouse.dataset.duplicates.bands import Bands
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, SIGNATURE_TYPE, signature_batch
from stillhouse.dataset.label_input import LabelInput
from stillhouse.types import Trajectory

Make = Callable[..., Trajectory]


def signed(*trajectories: Trajectory, near: bool = True) -> list[dict[str, Any]]:
    batch = signature_batch([LabelInput.of(trajectory, None) for trajectory in trajectories], near=near)
    assert batch.schema == SIGNATURE_SCHEMA
    return batch.to_pylist()


def test_signatures_agree_as_often_as_texts_are_alike(make: Make) -> None:
    words = [f"w{number}" for number in range(204)]
    rows = signed(make(" ".join(words[:104]), "x"), make(" ".join(words[50:154]), "x"))
    first, second = (np.frombuffer(row["prompt_signature"], SIGNATURE_TYPE) for row in rows)
    # Of 100 shingles each, 50 are shared.
    assert np.mean(first == second) == pytest.approx(50 / 150, abs=0.08)


def test_nothing_is_signed_where_near_duplicates_are_not_looked_for(make: Make) -> None:
    row = signed(make("Why?", "Since."), near=False)[0]
    assert row["prompt_signature"] is row["row_signature"] is None
    assert len(row["prompt_hash"]) == len(row["row_hash"]) == 16


def test_a_row_without_anything_written_has_a_prompt_alone(make: Make) -> None:
    rows = signed(make("Why?", None), make("Why?", "Since."))
    assert rows[0]["row_hash"] is rows[0]["row_signature"] is None
    assert rows[0]["prompt_hash"] == rows[1]["prompt_hash"]
    assert rows[0]["prompt_signature"] == rows[1]["prompt_signature"] is not None


def test_signatures_are_the_same_in_every_process(make: Make) -> None:
    row = signed(make("Why is the sky blue?", "Since air scatters blue light more."))[0]
    assert hashlib.sha256(row["row_signature"]).hexdigest()[:16] == "2abcda05546b12e6"


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.85, 0.95, 1.0])
def test_bands_propose_what_lies_at_the_threshold_and_are_as_wide_as_that_allows(threshold: float) -> None:
    number, width = Bands.for_threshold(threshold)
    assert number * width <= 128
    assert 1 - (1 - threshold**width) ** number >= 0.98
    assert width == 128 or 1 - (1 - threshold ** (width + 1)) ** (128 // (width + 1)) < 0.98
