"""The most probable tokens that servers give beside the log-probabilities of given ones."""

import math
from typing import Any

import numpy as np
import pytest

from stillhouse.errors import EndpointError
from stillhouse.types import Sample

Far = Any
"""The fake server, and teachers connected to it; see conftest."""
Requests = list[Sample]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_most_probable_tokens_come_with_the_mass_of_all_others(far: Far, requests: Requests, kind: str) -> None:
    teacher = far.connect(kind, top_k=3)
    scores = teacher.start(requests).result(120)
    teacher.close()
    assert [scored.logprobs for scored in scores] == far.truths(requests)
    for request, (_, top) in zip(requests, scores, strict=True):
        places = [place for place, is_sampled in enumerate(request.loss_mask) if is_sampled]
        best = [far.server.best(request.token_ids, place, 3) for place in places]
        assert top is not None
        assert top.ids_NK.tolist() == [[token for token, _ in pairs] for pairs in best]
        assert top.logprobs_NK == pytest.approx(np.array([[value for _, value in pairs] for pairs in best]), abs=1e-3)
        others = [1 - sum(math.exp(value) for _, value in pairs) for pairs in best]
        known = [math.log(mass if mass > 1e-6 else 1e-6) for mass in others]
        assert top.log_tail_N == pytest.approx(np.array(known), abs=1e-2)


def test_a_server_that_gives_fewer_tokens_than_asked_for_says_so_before_the_training(far: Far) -> None:
    with pytest.raises(EndpointError, match=r"max: 20(.|\n)*--max-logprobs"):
        far.connect("vllm", top_k=100)


def uneven(answer: Any) -> Any:
    """As of a server that leaves out tokens of little probability."""
    for choice in answer["choices"]:
        last = choice["prompt_logprobs"][-1]
        kept = sorted(last, key=lambda token: -last[token]["rank"])[:2]
        choice["prompt_logprobs"][-1] = {token: last[token] for token in kept}
    return answer


def test_positions_with_different_numbers_of_tokens_are_refused(far: Far) -> None:
    far.server.spoil = uneven
    with pytest.raises(EndpointError, match=r"2 to 3 .*; expected 3"):
        far.connect("vllm", top_k=3)
