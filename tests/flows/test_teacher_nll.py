"""Rollouts that record give each row the teacher's surprise, by which rows are dropped without another request."""

import math
from pathlib import Path

import pytest

from stillhouse.dataset.read import read_rows
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion
from stillhouse.testing.logprobs import token_logprobs, words_of
from tasks.publish import Published

ROWS = [{"prompt": f"Who is number {number}?"} for number in range(6)]


def answer(request: ReceivedRequest) -> Reply:
    """The more words, the more surprising the last of them."""
    said = "It is " + "very " * int(request.body["messages"][-1]["content"][-2]) + "odd"
    body = completion(said)
    logprobs = token_logprobs(words_of(said), request.body["top_logprobs"])
    logprobs["content"][-1]["logprob"] = -1.0 - len(said)
    body["choices"][0]["logprobs"] = logprobs
    return Reply(body)


def test_rows_that_surprise_the_teacher_are_dropped_by_thresholds_alone(generate, provider: SimulatedProvider) -> None:
    def run(**filters: float) -> Published:
        dataset = {"labels": {"teacher_nll": True}, "filters": filters, "validation_fraction": 0.0}
        return generate(ROWS, dataset=dataset, rollouts={"record_top_k": 3})

    def surprise(published: Published, split: str) -> list[float]:
        assert published.dataset is not None
        return sorted(row["teacher_nll"] for row in read_rows(Path(published.dataset.uri), split))

    every = run()
    assert every.cached["teacher_nll"] is False
    values = surprise(every, "train")
    assert values[0] == pytest.approx((-math.log(0.75) * 2 + 1 + len("It is odd")) / 3)
    kept = run(min_teacher_nll=values[1], max_teacher_nll=values[4])
    assert (kept.cached["teacher_nll"], kept.cached["dataset"]) == (True, False)
    assert surprise(kept, "train") == values[1:5]
    assert surprise(kept, "rejected") == [values[0], values[5]]
    assert len(provider.ledger) == 6
