import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stillhouse.config import BudgetConfig, EmbeddingsConfig, TeacherConfig
from stillhouse.dataset.schema import EMBEDDINGS_FILE
from stillhouse.errors import AuthenticationError, BudgetReached
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, error
from stillhouse.testing.answers import Service
from stillhouse.types import Artifact, Trajectory
from tasks.embeddings import embeddings_task
from tasks.models import teacher_model
from tasks.run.context import RunContext

MakeAnswered = Callable[..., Trajectory]
Embed = Callable[..., tuple[Artifact, list[Any]]]


@pytest.fixture
def embed(
    make_context: Callable[..., RunContext],
    write_shard: Callable[..., tuple[Artifact, Artifact]],
    monkeypatch: pytest.MonkeyPatch,
) -> Embed:
    """The task on one shard: its artifact, and the rows of its file."""
    monkeypatch.setenv("OPENAI_API_KEY", "teacher-key")
    monkeypatch.setenv("EMBEDDINGS_KEY", "embeddings-key")

    def run(url: str, rows: list[Trajectory], budget: Any = BudgetConfig(), usd: Any = None, **runtime: Any) -> Any:
        section = EmbeddingsConfig(base_url=url, model="e-1", batch_size=2, usd_per_million_tokens=usd)
        shard, _ = write_shard(rows)
        model = teacher_model(TeacherConfig(model=section.model, base_url=url))
        context = make_context(budget=budget, **runtime)
        artifact = asyncio.run(embeddings_task.fn(shard, model, section, f"embeddings/{shard.fingerprint}", context))
        return artifact, pq.read_table(Path(artifact.uri) / EMBEDDINGS_FILE)["embedding"].to_pylist()

    return run


def test_rows_get_the_vectors_of_their_prompts_in_order(embed: Embed, make_answered: MakeAnswered) -> None:
    questions = ["How many apples?", "How many pears?", "How many apples?", ""]
    rows = [make_answered(question, f"It is {place}.") for place, question in enumerate(questions)]
    with SimulatedProvider(service=Service(latency_s=0)) as provider:
        artifact, vectors = embed(provider.url, rows)
        assert [body["input"] for body in provider.requests] == [["How many apples?", "How many pears?"]]
        assert provider.requests[0]["model"] == "e-1"
        again, same = embed(provider.url, rows[::-1])
        assert len(provider.ledger) == 1
    assert vectors[0] == vectors[2] != vectors[1]
    assert vectors[3] is None
    assert same == vectors[::-1]
    assert (artifact.num_rows, artifact.facts["completions"], again.facts["completions"]) == (4, 1, 0)


def test_a_cap_in_money_needs_no_price_and_one_in_requests_holds(embed: Embed, make_answered: MakeAnswered) -> None:
    rows = [make_answered(f"question {place}?") for place in range(6)]
    with SimulatedProvider(service=Service(latency_s=0)) as provider:
        with pytest.raises(BudgetReached, match=r"budget\.max_requests"):
            embed(provider.url, rows, BudgetConfig(max_usd=1.0, max_requests=2))
        assert provider.num_billed == 2


def test_the_cost_is_reported_where_the_price_is_known(embed: Embed, make_answered: MakeAnswered) -> None:
    rows = [make_answered(f"question {place}?") for place in range(6)]
    with SimulatedProvider(service=Service(latency_s=0)) as provider:
        artifact, _ = embed(provider.url, rows, usd=1000.0)
        assert artifact.facts["cost_usd"] == pytest.approx(artifact.facts["prompt_tokens"] / 1000)
        unknown, _ = embed(provider.url, [make_answered("another?")])
        assert unknown.facts["cost_usd"] is None


def test_the_cost_counts_against_the_budget_of_the_run(embed: Embed, make_answered: MakeAnswered) -> None:
    with SimulatedProvider(service=Service(latency_s=0)) as provider:
        with pytest.raises(BudgetReached, match=r"budget\.max_usd"):
            embed(provider.url, [make_answered("dear?")], BudgetConfig(max_usd=0.001), usd=1000.0)
        assert provider.ledger == []


def test_the_endpoint_has_a_key_of_its_own(embed: Embed, make_answered: MakeAnswered) -> None:
    keys = []

    def guarded(request: ReceivedRequest) -> Reply:
        keys.append(request.authorization)
        return error(401, f"no such key at {request.path}")

    with SimulatedProvider(guarded) as provider:
        with pytest.raises(
            AuthenticationError,
            match=r"no such key at /v1/embeddings.* EMBEDDINGS_KEY:.* runtime\.embeddings_api_key_env",
        ):
            embed(provider.url, [make_answered("one?")], embeddings_api_key_env="EMBEDDINGS_KEY")
        with pytest.raises(AuthenticationError, match=r"variable OPENAI_API_KEY:"):
            embed(provider.url, [make_answered("one?")])
    assert keys == ["Bearer embeddings-key", "Bearer teacher-key"]
