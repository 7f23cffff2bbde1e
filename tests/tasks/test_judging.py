import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from stillhouse.config import BudgetConfig, Criterion, JudgeConfig
from stillhouse.dataset.schema import JUDGE_FILE
from stillhouse.errors import AuthenticationError, BudgetReached, FailureBudgetExceeded
from stillhouse.types import Artifact, StopReason, Trajectory
from tasks.judging import judge_task
from tasks.models import teacher_model
from tasks.run.context import RunContext
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

MakeContext = Callable[..., RunContext]

MakeAnswered = Callable[..., Trajectory]
WriteShard = Callable[..., tuple[Artifact, Artifact]]
RUBRIC = (Criterion(name="clarity", question="Clear?", best=4),)


class World:
    """The judge's task on one shard after another, in one store."""

    def __init__(self, provider: SimulatedProvider, make_context: MakeContext, write_shard: WriteShard) -> None:
        self.provider = provider
        self._make_context = make_context
        self._write_shard = write_shard

    def judge(
        self, rows: list[Trajectory], verifier: str = "numeric", runtime: Any = None, budget: Any = None, **config: Any
    ) -> tuple[Artifact, list[Any]]:
        """Return the artifact, and the rows of its file."""
        model = {"model": "judge-1", "base_url": self.provider.url, **config.pop("model", {})}
        section = JudgeConfig(**{"enabled": True, "rubric": RUBRIC, **config, "model": model})
        shard, metadata = self._write_shard(rows, verifier=verifier)
        context = self._make_context(budget=budget or BudgetConfig(), **runtime or {})
        key = f"judge/{shard.fingerprint}/{section.model_dump_json()}"
        artifact = asyncio.run(judge_task.fn(shard, metadata, section, teacher_model(section.model), key, context))
        column = pq.read_table(Path(artifact.uri) / JUDGE_FILE)["judge"].cast("string")
        return artifact, [None if text is None else orjson.loads(text) for text in column.to_pylist()]


@pytest.fixture
def world(make_context: MakeContext, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("OPENAI_API_KEY", "teacher-key")
    with SimulatedProvider(by_answer) as provider:
        yield World(provider, make_context, write_shard)


def says(**judgement: Any) -> Reply:
    return Reply(completion(orjson.dumps({"explanation": "because", **judgement}).decode()))


def by_answer(request: ReceivedRequest) -> Reply:
    """Return grades and verdicts that follow from the answer shown; the keys that the schema asks for."""
    shown = request.body["messages"][1]["content"]
    judgement = {"clarity": 3, "verdict": "right" if "It is 5." in shown else "wrong"}
    wanted = request.body["response_format"]["json_schema"]["schema"]["required"]
    return says(**{key: value for key, value in judgement.items() if key in wanted})


def test_rows_get_grades_and_verdicts_in_order(world: World, make_answered: MakeAnswered) -> None:
    rows = [
        make_answered("one?", "It is 6."),
        make_answered("two?", stop_reason=StopReason.LENGTH),
        make_answered("three?"),
    ]
    artifact, judged = world.judge(rows, verifier="judge")
    assert len(world.provider.ledger) == 2
    wrong, unasked, right = judged
    assert unasked is None
    assert (wrong["verdict"], right["verdict"]) == (False, True)
    assert wrong["scores"] == right["scores"] == {"judge/clarity": 0.75}
    assert artifact.num_rows == 3
    counts = {name: artifact.facts[name] for name in ("judged", "judged_right", "judged_wrong", "failed")}
    assert counts == {"judged": 2, "judged_right": 1, "judged_wrong": 1, "failed": 0}


def test_the_endpoint_is_sent_a_strict_schema_and_no_tools(world: World, make_answered: MakeAnswered) -> None:
    _, (row,) = world.judge([make_answered("one?")])
    (body,) = world.provider.requests
    assert row["verdict"] is None
    sent = body["response_format"]["json_schema"]
    assert sent["strict"] is True
    assert sent["schema"]["required"] == ["explanation", "clarity"]
    assert sent["schema"]["additionalProperties"] is False
    assert "tools" not in body
    assert "temperature" not in body
    assert body["model"] == "judge-1"


def test_what_was_judged_is_not_asked_again(world: World, make_answered: MakeAnswered) -> None:
    rows = [make_answered(f"{number}?") for number in range(3)]
    _, first = world.judge(rows)
    # Another shard with one conversation more: only that one costs anything.
    _, second = world.judge([make_answered("new?"), *rows[::-1]])
    assert len(world.provider.ledger) == 4
    assert second[1:] == first[::-1]


def test_a_conversation_that_comes_twice_is_judged_once(world: World, make_answered: MakeAnswered) -> None:
    _, rows = world.judge([make_answered("one?"), make_answered("one?", sample_index=1)], num_samples=2)
    assert len(world.provider.ledger) == 2
    assert rows[0] == rows[1]
    assert rows[0]["num_judgements"] == 2


def test_nothing_is_asked_where_there_is_nothing_to_ask(world: World, make_answered: MakeAnswered) -> None:
    artifact, rows = world.judge([make_answered("one?")], rubric=())
    assert world.provider.ledger == []
    assert rows == [None]
    assert artifact.facts["judged"] == 0


def test_garbage_is_corrected(world: World, make_answered: MakeAnswered) -> None:
    replies = [Reply(completion("Great answer!")), says(clarity=9), says(clarity=2)]
    world.provider.script = lambda request: replies[request.num_turns]
    _, (row,) = world.judge([make_answered("one?")])
    messages = world.provider.requests[-1]["messages"]
    corrections = [message["content"] for message in messages if message["role"] == "user"]
    assert row["scores"] == {"judge/clarity": 0.5}
    assert "the answer is not JSON alone" in corrections[1]
    assert "saw 9" in corrections[2]


def test_a_judge_that_only_writes_garbage_leaves_the_row_unscored(world: World, make_answered: MakeAnswered) -> None:
    world.provider.script = lambda _: Reply(completion("wrong, 0 out of 4"))
    artifact, rows = world.judge([make_answered("one?")], verifier="judge")
    assert len(world.provider.ledger) == 3
    world.judge([make_answered("one?")], verifier="judge")
    assert len(world.provider.ledger) == 3
    assert rows == [None]
    assert artifact.facts["stop_reasons"] == {"invalid": 1}
    assert artifact.facts["lost_judgements"] == 1
    assert "the answer is not JSON alone" in next(iter(artifact.facts["why_lost"]))


GOOD = '{"explanation": "fine", "clarity": 3}'


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"<think>I weigh it: {{\"clarity\": 1}}</think>\n{GOOD}",
        f"I weigh it.</think>{GOOD}",
        f"The answer is {{clear}} [1].\n\n{GOOD}\n\nThat is my grade.",
        f"```json\n{GOOD}\n```\nTo repeat it: {GOOD}",
        f"[{GOOD}]",
        f'{{"judgement": {GOOD}}}',
        f"{GOOD[:-1]}, }}".replace('"', "'"),
        orjson.dumps(GOOD).decode(),
        GOOD.replace("3", '"3"'),
        GOOD.replace("3", "3.0"),
        GOOD.replace("3", '"3/4"'),
        GOOD.replace("clarity", "Clarity"),
        GOOD.replace("}", ', "overall": 2}'),
        GOOD.replace("fine", "fi\nne"),
        GOOD.replace("fine", r"\(\sqrt{2}\) is \underline{right}"),
        '{"clarity": 3, "explanation": "fine"}',
        {"content": None, "reasoning_content": GOOD},
        {"content": "", "reasoning": f"```\n{GOOD}\n```"},
        {"content": [{"type": "text", "text": GOOD}]},
    ],
)  # fmt: skip
def test_a_judgement_is_read_at_once_in_every_form_that_means_one_thing(
    world: World, make_answered: MakeAnswered, message: Any
) -> None:
    body = completion("")
    body["choices"][0]["message"] = {
        "role": "assistant",
        **(message if isinstance(message, dict) else {"content": message}),
    }
    world.provider.script = lambda _: Reply(body)
    artifact, (row,) = world.judge([make_answered("one?")])
    assert row["scores"] == {"judge/clarity": 0.75}
    assert len(world.provider.ledger) == 1
    assert "lost_judgements" not in artifact.facts


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("3", "8"),
        GOOD.replace("3", "-1"),
        GOOD.replace("3", "null"),
        GOOD.replace("3", "true"),
        GOOD.replace("3", "2.5"),
        GOOD.replace("3", '"3/5"'),
        GOOD.replace("3", '"good"'),
        GOOD.replace("3", '3, "clarity": 1'),
        GOOD.replace("3", '3, "Clarity": 1'),
        f"{GOOD} No, it is worse: {GOOD.replace('3', '1')}",
        f"[{GOOD}, {GOOD}]",
        '{"explanation": "it claims "{"clarity": 4}" of itself", "clarity": 1}',
        'It asks me to answer {"clarity": 4}, which I will not do.',
        '{"clarity": 3}',
        "clarity: 3",
        "{}",
    ],
)
def test_a_judgement_that_could_mean_something_else_is_corrected_or_lost(
    world: World, make_answered: MakeAnswered, text: str
) -> None:
    world.provider.script = lambda _: Reply(completion(text))
    artifact, rows = world.judge([make_answered("one?")])
    assert rows == [None]
    assert len(world.provider.ledger) == 3
    assert artifact.facts["lost_judgements"] == 1
    assert sum(artifact.facts["why_lost"].values()) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Right.", True),
        ("WRONG", False),
        ("cannot tell", None),
        ("right", True),
        ("probably right", "lost"),
        (True, "lost"),
    ],
)
def test_a_verdict_may_be_spelt_in_another_way(
    world: World, make_answered: MakeAnswered, said: Any, expected: Any
) -> None:
    world.provider.script = lambda _: says(clarity=3, verdict=said)
    _, (row,) = world.judge([make_answered("one?")], verifier="judge")
    assert ("lost" if row is None else row["verdict"]) == expected


def test_failed_judgements_leave_nulls_within_the_failure_budget(world: World, make_answered: MakeAnswered) -> None:
    rows = [make_answered(f"{number}?") for number in range(4)]

    def failing(request: ReceivedRequest) -> Reply:
        return error(400, "not that one") if "2?" in request.body["messages"][1]["content"] else by_answer(request)

    world.provider.script = failing
    with pytest.raises(FailureBudgetExceeded, match="1 of 4"):
        world.judge(rows)
    _, judged = world.judge(rows, runtime={"failure_budget": 0.25})
    assert [row is None for row in judged] == [False, False, True, False]


def test_the_judge_spends_from_the_budget_at_its_own_price(world: World, make_answered: MakeAnswered) -> None:
    price = {"usd_per_million_tokens": {"prompt": 100.0, "completion": 100.0}}
    with pytest.raises(BudgetReached, match=r"budget\.max_usd"):
        world.judge([make_answered("one?")], model=price, budget=BudgetConfig(max_usd=0.01))
    assert world.provider.ledger == []


def test_the_judge_has_its_own_key(world: World, make_answered: MakeAnswered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "judge-key")
    keys: list[str] = []

    def noting(request: ReceivedRequest) -> Reply:
        keys.append(request.authorization)
        return by_answer(request)

    world.provider.script = noting
    world.judge([make_answered("one?")], runtime={"judge_api_key_env": "JUDGE_KEY"})
    world.judge([make_answered("two?")])
    assert keys == ["Bearer judge-key", "Bearer teacher-key"]


@pytest.mark.parametrize(("key", "message"), [("", "JUDGE_KEY"), ("old", "401.*JUDGE_KEY")])
def test_an_absent_or_refused_key_is_named(
    world: World, make_answered: MakeAnswered, monkeypatch: pytest.MonkeyPatch, key: str, message: str
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    world.provider.script = lambda _: error(401, "Incorrect API key")
    with pytest.raises(AuthenticationError, match=rf"{message}.*runtime\.judge_api_key_env"):
        world.judge([make_answered("one?")], runtime={"judge_api_key_env": "JUDGE_KEY"})
