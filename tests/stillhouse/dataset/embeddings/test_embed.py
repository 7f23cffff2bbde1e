import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.config import BudgetConfig, RuntimeConfig
from stillhouse.dataset.embeddings.embed import MAX_CHARACTERS, Embedder, Vector, prompt_text, write_embeddings
from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.inference import Endpoint, Journal, RolloutStats, open_journal
from stillhouse.inference.budget import Budget
from stillhouse.inference.rate_limit import controller_of
from stillhouse.inference.retry import Effects
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, error
from stillhouse.testing.embeddings import embeddings, vector_of
from stillhouse.types import Trajectory

TEXTS = [f"case {number}: how many apples has Anna?" for number in range(10)]


def embedder_of(url: str, journal: Journal, model: str = "m", batch_size: int = 4) -> Embedder:
    endpoint, runtime = Endpoint(url, model, f"{model}@test"), RuntimeConfig(max_attempts=2)
    return Embedder(
        endpoint,
        batch_size,
        journal=journal,
        runtime=runtime,
        controller=controller_of(endpoint, runtime),
        budget=Budget(BudgetConfig(), None),
        effects=Effects(sleep=lambda _: asyncio.sleep(0)),
    )


def embed(url: str, store: Path, texts: list[str], **changes: Any) -> tuple[dict[str, Vector], RolloutStats]:
    with open_journal(store) as journal:
        embedder = embedder_of(url, journal, **changes)
        return asyncio.run(embedder.embed(texts)), embedder.stats


def inputs(provider: SimulatedProvider) -> list[str]:
    return [text for body in provider.requests for text in body["input"]]


def answering(request: ReceivedRequest) -> Reply:
    return Reply(embeddings(request.body))


def test_each_distinct_text_gets_its_own_vector_of_length_one(tmp_path: Path) -> None:
    with SimulatedProvider(answering) as provider:
        vectors, stats = embed(provider.url, tmp_path, [*TEXTS, *TEXTS[:3]])
    assert sorted(inputs(provider)) == TEXTS
    assert sorted(len(body["input"]) for body in provider.requests) == [2, 4, 4]
    assert stats.prompt_tokens == sum(len(text) // 4 + 1 for text in TEXTS)
    for text in TEXTS:
        raw = np.array(vector_of(text))
        assert vectors[text] == pytest.approx(raw / np.linalg.norm(raw), abs=1e-6)


def test_a_second_time_nothing_is_asked_but_for_new_texts_and_other_models(tmp_path: Path) -> None:
    with SimulatedProvider(answering) as provider:
        first, _ = embed(provider.url, tmp_path, TEXTS)
        again, stats = embed(provider.url, tmp_path, [*TEXTS, "something new"])
        assert sorted(inputs(provider)) == sorted([*TEXTS, "something new"])
        assert stats.num_replayed == len(TEXTS)
        embed(provider.url, tmp_path, TEXTS[:1], model="other")
    assert inputs(provider)[-1:] == TEXTS[:1]
    assert all(np.array_equal(first[text], again[text]) for text in TEXTS)


def test_vectors_go_by_their_index_whatever_order_they_come_in(tmp_path: Path) -> None:
    def shuffled(request: ReceivedRequest) -> Reply:
        body = embeddings(request.body)
        return Reply({**body, "data": body["data"][::-1]})

    with SimulatedProvider(shuffled) as provider:
        vectors, _ = embed(provider.url, tmp_path, TEXTS)
    raw = np.array(vector_of(TEXTS[1]))
    assert vectors[TEXTS[1]] == pytest.approx(raw / np.linalg.norm(raw), abs=1e-6)


def test_refusals_are_waited_out_and_failures_tried_again(tmp_path: Path) -> None:
    def script(request: ReceivedRequest) -> Reply:
        if request.index == 0:
            return error(429, "slow down", headers={"retry-after": "0"})
        return error(500, "oops") if request.index == 1 else answering(request)

    with SimulatedProvider(script) as provider:
        vectors, stats = embed(provider.url, tmp_path, TEXTS[:2])
    assert len(vectors) == 2
    assert stats.num_rate_limited == 1
    assert provider.num_billed == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: {**body, "data": body["data"][:-1]},
        lambda body: {
            **body,
            "data": [{**row, "embedding": row["embedding"][: 8 + row["index"]]} for row in body["data"]],
        },
        lambda body: {**body, "data": [{**row, "embedding": [0.0] * 8} for row in body["data"]]},
        lambda body: {**body, "data": None},
        lambda body: [body],
    ],
    ids=["one is missing", "sizes differ", "no direction", "no data", "no object"],
)
def test_malformed_vectors_are_not_kept(
    tmp_path: Path, spoil: Callable[[dict[str, object]], dict[str, object]]
) -> None:
    with SimulatedProvider(lambda request: Reply(spoil(embeddings(request.body)))) as provider:
        with pytest.raises(EndpointError, match=r"could not be embedded by model 'm'.*case 0.*dataset\.embeddings"):
            embed(provider.url, tmp_path, TEXTS[:3])
        provider.script = answering
        vectors, stats = embed(provider.url, tmp_path, TEXTS[:3])
    assert len(vectors) == 3
    assert stats.num_replayed == 0


def test_a_text_too_long_for_the_model_is_cut_and_others_of_its_batch_are_not(tmp_path: Path) -> None:
    def small(request: ReceivedRequest) -> Reply:
        if max(map(len, request.body["input"])) > 3000:
            return error(400, "maximum context length is 512 tokens", code="context_length_exceeded")
        return answering(request)

    long, short = "far too long " * 1000, "s" * 2999
    with SimulatedProvider(small) as provider:
        vectors, _ = embed(provider.url, tmp_path, [TEXTS[0], short, long])
    assert set(vectors) == {long, short, TEXTS[0]}
    billed = [text for text in inputs(provider) if len(text) <= 3000]
    assert long[: MAX_CHARACTERS // 4] in billed
    assert short in billed


def test_what_came_in_before_a_failure_is_kept(tmp_path: Path) -> None:
    def script(request: ReceivedRequest) -> Reply:
        return error(400, "no") if TEXTS[-1] in request.body["input"] else answering(request)

    with SimulatedProvider(script) as provider:
        with pytest.raises(EndpointError, match="HTTP 400: no"):
            embed(provider.url, tmp_path, TEXTS)
        provider.script = answering
        _, stats = embed(provider.url, tmp_path, TEXTS)
    assert stats.num_replayed == 8


def test_once_a_request_has_failed_for_good_no_other_is_begun(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(400)]
    with SimulatedProvider(lambda _: error(401, "bad key", code="invalid_api_key")) as provider:
        with pytest.raises(AuthenticationError, match="the API key was refused"):
            embed(provider.url, tmp_path, texts, batch_size=2)
        assert len(provider.ledger) <= 32


def test_two_at_once_pay_for_each_text_once(tmp_path: Path) -> None:
    async def both(url: str) -> list[dict[str, Vector]]:
        with open_journal(tmp_path) as journal:
            one, other = embedder_of(url, journal), embedder_of(url, journal)
            return await asyncio.gather(one.embed(TEXTS), other.embed(TEXTS[::-1]))

    with SimulatedProvider(lambda request: Reply(embeddings(request.body), delay_s=0.05)) as provider:
        first, second = asyncio.run(both(provider.url))
    assert sorted(inputs(provider)) == TEXTS
    assert set(first) == set(second) == set(TEXTS)


_CHILD = """
    import asyncio, sys
    from stillhouse.config import BudgetConfig, RuntimeConfig
    from stillhouse.dataset.embeddings.embed import Embedder
    from stillhouse.inference import Endpoint, open_journal
    from stillhouse.inference.budget import Budget
    from stillhouse.inference.rate_limit import controller_of

    url, store = sys.argv[1:]
    endpoint, runtime = Endpoint(url, "m", "m@test"), RuntimeConfig(store=store, max_concurrency=2)
    with open_journal(store) as journal:
        embedder = Embedder(
            endpoint, 2, journal=journal, runtime=runtime, controller=controller_of(endpoint, runtime),
            budget=Budget(BudgetConfig(), None),
        )
        asyncio.run(embedder.embed([f"text {number}" for number in range(400)]))
"""


def test_a_killed_run_pays_again_for_nothing_but_what_was_in_flight(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(400)]
    with SimulatedProvider(lambda request: Reply(embeddings(request.body), delay_s=0.02)) as provider:
        command = [sys.executable, "-c", textwrap.dedent(_CHILD), provider.url, str(tmp_path)]
        with subprocess.Popen(command) as child:
            deadline = time.monotonic() + 60
            while provider.num_billed < 40 and time.monotonic() < deadline:
                time.sleep(0.01)
            child.kill()
        before = provider.num_billed
        assert 40 <= before < 200
        vectors, stats = embed(provider.url, tmp_path, texts, batch_size=2)
        asked = inputs(provider)
    assert set(vectors) == set(texts)
    # Two requests of two texts in flight, and two that had just been answered.
    assert len(asked) - len(texts) <= 8
    assert stats.num_replayed >= 2 * before - 8


def vector(*numbers: float) -> Any:
    return np.array(numbers, dtype=np.float32)


def test_rows_of_one_prompt_share_a_vector_and_rows_without_text_have_none(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.parquet"
    vectors = {"a": vector(1.0, 0.0), "b": vector(0.6, 0.8)}
    assert write_embeddings(path, ["b", None, "a", "b"], vectors) == 4
    column = pq.read_table(path)["embedding"]
    assert column.type == pa.list_(pa.float32())
    assert column.to_pylist() == [pytest.approx([0.6, 0.8]), None, [1.0, 0.0], pytest.approx([0.6, 0.8])]


def test_vectors_of_two_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="2 and 3 dimensions"):
        write_embeddings(tmp_path / "e.parquet", ["a", "b"], {"a": vector(1, 0), "b": vector(1, 0, 0)})


def test_the_text_is_what_the_user_said_before_the_model_did(make_trajectory: Callable[..., Trajectory]) -> None:
    one = make_trajectory()
    with_system = make_trajectory(messages=[{"role": "system", "content": "You are kind."}, *one.messages])
    expected = "Anna has 2 apples. Anna buys 3 more. Case 0."
    assert prompt_text(one) == prompt_text(with_system) == expected
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    assert prompt_text(make_trajectory(messages=[{"role": "user", "content": picture}], turns=[])) is None
