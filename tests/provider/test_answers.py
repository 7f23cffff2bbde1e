import json
import statistics
from collections import Counter
from typing import Any

import pytest

from tests.provider.answers import Answers, Service, size_of
from tests.provider.reply import ReceivedRequest, Reply


def request(case: int = 0, *, attempt: int = 0, **keys: Any) -> ReceivedRequest:
    messages = keys.pop("messages", [{"role": "user", "content": f"How many in [case-{case:06d}]?"}])
    raw = json.dumps({"model": "m", "messages": messages, **keys}).encode()
    return ReceivedRequest(raw, f"digest-{case}", attempt, case, keys.get("authorization", ""))


def body_of(reply: Reply) -> Any:
    assert isinstance(reply.body, bytes)
    return json.loads(reply.body)


def message_of(reply: Reply) -> Any:
    return body_of(reply)["choices"][0]["message"]


def test_an_answer_names_the_case_of_its_prompt_and_is_the_same_again() -> None:
    answers = Answers(Service(completion_tokens=30))
    first = answers(request(7))
    assert "[case-000007]" in message_of(first)["content"]
    assert answers(request(7)) == first
    assert body_of(first)["usage"]["total_tokens"] == first.tokens
    assert 30 <= body_of(first)["usage"]["completion_tokens"] <= 32
    one, other = (answers(request(messages=[{"role": "user", "content": text}])) for text in ("one", "two"))
    assert message_of(one)["content"] != message_of(other)["content"]
    three = body_of(answers(request(7, n=3)))
    assert len(three["choices"]) == 3
    assert three["usage"]["completion_tokens"] == 3 * body_of(first)["usage"]["completion_tokens"]
    growing = Answers(Service(completion_tokens=20, long_from=5))
    assert growing(request(5)).tokens > 5 * growing(request(4)).tokens


def test_tools_are_called_in_turn_and_then_the_answer_comes() -> None:
    answers = Answers(Service(tool_turns=3))
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "ask")]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "[case-000001]"}]
    for turn, name in enumerate(("look", "ask", "look")):
        message = message_of(answers(request(messages=messages, tools=tools)))
        [call] = message["tool_calls"]
        assert call["function"]["name"] == name
        assert json.loads(call["function"]["arguments"]) == {"case": "[case-000001]", "turn": turn}
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "x"}]
    assert "[case-000001]" in message_of(answers(request(messages=messages, tools=tools)))["content"]
    assert "tool_calls" not in message_of(answers(request()))


def test_latency_follows_its_distribution_and_its_seed() -> None:
    service = Service(latency_s=0.2, latency_sigma=0.5)
    drawn = [Answers(service)(request(case)).delay_s for case in range(2000)]
    assert statistics.median(drawn) == pytest.approx(0.2, rel=0.05)
    assert statistics.quantiles(drawn, n=100)[83] == pytest.approx(0.2 * 2.718**0.5, rel=0.1)
    assert [Answers(service)(request(case)).delay_s for case in range(5)] == drawn[:5]
    other = service.model_copy(update={"seed": 1})
    assert Answers(other)(request(0)).delay_s != drawn[0]
    assert {Answers(Service(latency_s=0.3))(request(case)).delay_s for case in range(9)} == {0.3}


def test_faults_come_at_their_rates_and_another_attempt_has_other_luck() -> None:
    answers = Answers(Service(faults={"500": 0.1, "reset": 0.05}))
    replies = [answers(request(case)) for case in range(4000)]
    kinds = Counter("500" if reply.status == 500 else reply.fault for reply in replies)
    assert kinds["500"] == pytest.approx(400, rel=0.2)
    assert kinds["reset"] == pytest.approx(200, rel=0.3)
    failed = next(case for case, reply in enumerate(replies) if reply.status == 500)
    assert any(answers(request(failed, attempt=attempt)).status == 200 for attempt in range(1, 4))


@pytest.mark.parametrize(
    ("fault", "on_the_wire", "is_sampled"),
    [
        *(("reset", "reset", True), ("cut", "cut", True), ("silent", "close", True)),
        *(("error_body", "none", False), ("rate_body", "none", False)),
        *(("null_choices", "none", True), ("empty", "none", True)),
    ],
)
def test_every_fault_is_what_its_name_says(fault: str, on_the_wire: str, is_sampled: bool) -> None:
    reply = Answers(Service.model_validate({"faults": {fault: 1.0}}))(request())
    assert (reply.status, reply.fault, reply.sampled) == (200, on_the_wire, is_sampled)
    assert (reply.delay_s == 60.0) == (fault == "silent")


def test_what_a_request_reserves_is_its_prompt_and_max_tokens() -> None:
    raw = b'{"max_completion_tokens": 4096, "messages": []}'
    assert size_of(raw, 50).reserved_tokens == len(raw) // 4 + 4096
    assert size_of(b"{}", 50).reserved_tokens == 50
