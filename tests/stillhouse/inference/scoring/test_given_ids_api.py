"""The form of requests and answers of vLLM 0.32, which scores ids of the client's choice."""

from base64 import b64encode
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from stillhouse.inference.scoring.api import GivenIds, WrongAnswer
from stillhouse.inference.scoring.given_ids_api import GivenIdsApi

ASKED = GivenIds(
    [5, 6, 7, 8, 9], [False, False, True, False, True], np.array([[7, 1], [9, -1]], np.int32)
)  # fmt: skip
API = GivenIdsApi("big", top_k=2)
ROWS = np.array([[-0.5, -2.0], [-np.inf, -np.inf], [-0.25, -np.inf]], np.float32)


def answer(rows: Any) -> dict[str, Any]:
    buffer = BytesIO()
    np.save(buffer, rows)
    best = [{str(token): {"logprob": -0.5}, "4": {"logprob": -0.75}} for token in (6, 7, 8, 9)]
    return {"prompt_token_id_logprobs": b64encode(buffer.getvalue()).decode(), "prompt_logprobs": [None, *best]}


def test_each_place_from_the_first_scored_one_on_has_its_ids():
    body = API.body([ASKED], 1.0)
    assert (body["model"], body["token_ids"]) == ("big", [5, 6, 7, 8, 9])
    asked = {"prompt_logprob_start": 1, "prompt_logprob_token_ids": [[7, 1], [], [9, -1]], "prompt_logprobs": 2}
    assert body["sampling_params"] == {"max_tokens": 1, "detokenize": False, **asked}


def test_numbers_of_the_scored_places_are_read_in_their_order():
    [scores] = API.scores(answer(ROWS), [ASKED])
    assert scores.logprobs == [-0.5, -2.0, -0.25, -np.inf]
    assert scores.top is not None
    assert scores.top.ids_NK.tolist() == [[7, 4], [9, 4]], "of the teacher's own choice"


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"choices": []},
        {"prompt_token_id_logprobs": None},
        {"prompt_token_id_logprobs": 7},
        {"prompt_token_id_logprobs": "AAAA"},
        answer(ROWS[:2]),
        answer(ROWS[:, :1]),
        answer(ROWS + 1.0),
        answer(np.full_like(ROWS, np.nan)),
        answer(np.array(7.0)),
    ],
    ids=["list", "nothing", "null", "number", "no npy", "rows", "columns", "above 0", "nan", "scalar"],
)
def test_what_is_no_array_of_log_probabilities_is_refused(wrong: Any):
    with pytest.raises(WrongAnswer, match="prompt_token_id_logprobs"):
        API.scores(wrong, [ASKED])
