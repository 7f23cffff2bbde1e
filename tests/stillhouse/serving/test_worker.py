from collections.abc import Iterator

import pytest
from transformers import PreTrainedModel

from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.score import score_tokens
from stillhouse.serving.worker import ModelWorker, WorkerStopped


@pytest.fixture
def worker(model: PreTrainedModel) -> Iterator[ModelWorker]:
    worker = ModelWorker(model, max_batch=2)
    worker.start()
    yield worker
    worker.stop()


def test_completions_and_scores_asked_for_together_are_all_answered_right(
    worker: ModelWorker, model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    requests = [GenerationRequest(prompt, 15, seed=i) for i, prompt in enumerate(prompts)]
    samples = [worker.sample(request) for request in requests]
    scores = [worker.score(prompt, num_top=i % 3) for i, prompt in enumerate(prompts)]
    for request, future in zip(requests, samples, strict=True):
        assert future.result(120).completion_ids == Generator(model).run([request])[0].completion_ids
    for index, (prompt, score) in enumerate(zip(prompts, scores, strict=True)):
        ranked = score.result(120)
        assert [token.logprob for token in ranked] == pytest.approx(score_tokens(model, [prompt])[0][1:], abs=1e-4)
        assert all(len(token.top) == index % 3 for token in ranked)


def test_an_abandoned_completion_frees_its_place(worker: ModelWorker) -> None:
    futures = [worker.sample(GenerationRequest([5], 1000, temperature=3.0)) for _ in range(2)]
    worker.abandon(futures[0])
    assert worker.sample(GenerationRequest([6], 2)).result(120).completion_ids
    assert not futures[0].done()


def test_an_error_reaches_those_who_wait_and_the_worker_goes_on(worker: ModelWorker) -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        worker.sample(GenerationRequest([], 5)).result(120)
    for out_of_vocabulary in (worker.score([3, 100_000], num_top=0), worker.sample(GenerationRequest([100_000], 5))):
        with pytest.raises(IndexError):
            out_of_vocabulary.result(120)
    assert worker.sample(GenerationRequest([6], 2)).result(120).completion_ids


def test_stopping_ends_unfinished_work_and_refuses_new(model: PreTrainedModel) -> None:
    worker = ModelWorker(model)
    worker.start()
    running = worker.sample(GenerationRequest([5], 1000, temperature=3.0))
    worker.stop()
    with pytest.raises(WorkerStopped):
        running.result(120)
    with pytest.raises(WorkerStopped):
        worker.sample(GenerationRequest([5], 1))
