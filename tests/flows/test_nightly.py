"""Three nights of one deployment: the first student is promoted, the next starts from it, a bad one is kept out."""

import asyncio
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.shop_teacher import append_prompts, shop_teacher
from examples.embedded.shop import Story, draw_stories
from stillhouse.config import DistillConfig, parse_config
from stillhouse.dataset.read import read_rows
from stillhouse.training.results.record import read_record
from tasks.publish import Published
from tests.provider import SimulatedProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
NUM_STORIES, NUM_NEW = 300, 24
MODEL = "shop"


class Night(NamedTuple):
    published: Published
    asked: list[str]
    """The teacher's questions of this night, one for each request."""
    champion: int | None
    """Version under the alias when the night was over."""


class Nights(NamedTuple):
    first: Night
    second: Night
    third: Night
    new: list[Story]
    """Appended to the source before the second night."""
    store: Path
    config: DistillConfig


def champion_in(store: Path) -> int | None:
    from mlflow import MlflowClient

    aliases = MlflowClient(f"sqlite:///{store / 'mlflow.db'}").get_registered_model(MODEL).aliases
    return int(aliases["champion"]) if "champion" in aliases else None


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, shop_config) -> Iterator[Nights]:
    from flows.distill import distill

    folder = tmp_path_factory.mktemp("nightly")
    prompts, store = folder / "prompts.jsonl", folder / "store"
    stories = list(islice(draw_stories(random.Random(7), reserved=True), NUM_STORIES + NUM_NEW))
    old, new = stories[:NUM_STORIES], stories[NUM_STORIES:]
    asked: list[str] = []
    with SimulatedProvider(shop_teacher(stories, asked)) as provider:

        def config(**sft: Any) -> DistillConfig:
            key = {"api_key_env": "STILLHOUSE_TEST_KEY"}
            return parse_config(shop_config(prompts, store, provider.url, sft=sft, runtime=key), origin="nightly")

        def night(**sft: Any) -> Night:
            before = len(asked)
            published = distill(config(**sft))
            return Night(published, asked[before:], champion_in(store))

        append_prompts(prompts, old)
        first = night()
        append_prompts(prompts, new)
        second = night()
        third = night(learning_rate=0.01)
        yield Nights(first, second, third, new, store, config())


def version_of(student: str, store: Path) -> Any:
    """Return the registered version of a student's weights."""
    from mlflow import MlflowClient

    from stillhouse.chat.refs import model_identity

    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    weights = model_identity(student).rpartition("@")[2]
    (found,) = client.search_model_versions(f"name = '{MODEL}' and tags.student = '{weights}'")
    # A search leaves the aliases out.
    return client.get_model_version(MODEL, found.version)


def test_the_first_student_is_compared_with_the_base_and_becomes_the_champion(nights: Nights) -> None:
    published = nights.first.published
    assert list(published.evaluations) == ["base", "sft", "teacher"]
    assert published.promotion is not None
    assert published.promotion.startswith("sft is the new champion. sft is better than base: accuracy")
    version = version_of(published.students["sft"].uri, nights.store)
    assert nights.first.champion == int(version.version) == 1
    assert version.tags["promotion"].startswith("promoted: sft is better than base")


def test_on_the_second_night_only_new_prompts_are_asked_and_each_turn_once(nights: Nights) -> None:
    assert {len(story.events) for story in nights.new} == {1, 2, 3}
    expected = [story.text for story in nights.new for _ in range(len(story.events) + 1)]
    assert sorted(nights.second.asked) == sorted(expected)
    assert nights.third.asked == []


def test_the_dataset_grows_by_the_new_prompts(nights: Nights) -> None:
    def prompts(night: Night) -> set[str]:
        assert night.published.dataset is not None
        return {row["prompt_id"] for row in read_rows(Path(night.published.dataset.uri), "train")}

    first, second = prompts(nights.first), prompts(nights.second)
    assert first < second
    assert len(second) - len(first) <= NUM_NEW
    assert prompts(nights.third) == second


def test_the_second_student_starts_from_the_champion(nights: Nights) -> None:
    first, second = (night.published.students["sft"].uri for night in (nights.first, nights.second))
    assert read_record(Path(first)).started_from == "embedded:student"
    record = read_record(Path(second))
    assert record.started_from == first
    assert [stage.started_from for stage in record.stages] == ["embedded:student", first]
    assert list(nights.second.published.evaluations) == ["base", "champion", "sft", "teacher"]


def test_a_student_that_training_has_broken_is_kept_out_and_the_tags_that_fell_are_named(nights: Nights) -> None:
    published = nights.third.published
    assert nights.third.champion == nights.second.champion
    assert published.promotion is not None
    assert published.promotion.startswith("The champion stays. sft is not better than champion: accuracy")
    assert "sft is worse than champion on prompts tagged" in published.promotion
    assert "Prompt by prompt against the champion" in Path(published.report).read_text()
    version = version_of(published.students["sft"].uri, nights.store)
    assert version.aliases == ["candidate"]


def test_evaluating_the_candidate_again_asks_nobody_and_comes_to_the_same_verdict(nights: Nights) -> None:
    from flows.evaluate_models import evaluate_models

    published = evaluate_models(nights.config)
    assert list(published.evaluations) == ["base", "champion", "version 3", "teacher"]
    assert {name for name, cached in published.cached.items() if not cached} == {"comparison"}
    assert nights.third.published.promotion is not None
    assert published.promotion == nights.third.published.promotion.replace("sft is", "version 3 is")
    assert champion_in(nights.store) == nights.third.champion


def test_the_team_is_told_of_every_night(nights: Nights) -> None:
    events = asyncio.run(_events(f"stillhouse.model.{MODEL}", 3))
    told = [event["payload"] for event in events]
    verdicts = [night.published.promotion for night in (nights.first, nights.second, nights.third)]
    assert [payload["message"] for payload in told[:3]] == verdicts
    assert (events[0]["event"], events[2]["event"]) == ("stillhouse.student.promoted", "stillhouse.student.kept")
    assert {payload["model"] for payload in told} == {MODEL}
    assert told[0]["page"].endswith("/#/models/shop/versions/1")
    related = {(one["prefect.resource.role"], one["prefect.resource.name"]) for one in events[0]["related"]}
    assert ("flow", "distill") in related


def test_only_a_dataset_that_is_new_is_announced(nights: Nights) -> None:
    announced = []
    for night in (nights.first, nights.second):
        assert night.published.dataset is not None
        events = asyncio.run(_events(f"stillhouse.dataset.{night.published.dataset.fingerprint}", 1))
        announced += [event["payload"]["num_rows"] for event in events]
        assert events[0]["payload"]["config"]["tracking"]["register_as"] == MODEL
    assert announced == [night.published.dataset.num_rows for night in nights[:2]]  # type: ignore[union-attr]


async def _events(resource: str, num: int) -> list[dict[str, Any]]:
    """Wait for `num` events about a resource, which are sent in the background; return them, oldest first."""
    from prefect import get_client

    async with get_client() as client:
        while True:
            body = {"filter": {"any_resource": {"id": [resource]}, "order": "ASC"}, "limit": 50}
            found = (await client.request("POST", "/events/filter", json=body)).json()["events"]
            if len(found) >= num:
                return found
            await asyncio.sleep(0.2)
