"""Streamed answers over real HTTP."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai import OpenAI

from stillhouse.embedded.shop import CALCULATOR_SCHEMA

USER: dict[str, Any] = {
    "role": "user",
    "content": "Ben has 12 eggs. Ben finds 5 more. How many eggs does Ben have now?",
}
CHAT: dict[str, Any] = {"model": "student", "messages": [USER], "max_tokens": 40, "seed": 5}


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """What the events of an answer hold; the last is `[DONE]`."""
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    assert lines[1::2] == [""] * (len(lines) // 2), "each event is a line and an empty one"
    data = [line.removeprefix("data: ") for line in lines[::2]]
    return [json.loads(one) if one != "[DONE]" else one for one in data]


@pytest.fixture
def chunks(http: httpx.Client) -> Callable[..., list[Any]]:
    """The chunks of a streamed chat completion, which ends as it should."""

    def ask(**fields: Any) -> list[Any]:
        *chunks, done = events(http, "/chat/completions", {**CHAT, **fields})
        assert done == "[DONE]"
        return chunks

    return ask


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_deltas_add_up_to_the_answer_that_is_not_streamed(
    http: httpx.Client, chunks: Callable[..., list[Any]], temperature: float
) -> None:
    fields = {"temperature": temperature, "tools": [CALCULATOR_SCHEMA], "logprobs": True, "n": 3}
    whole = http.post("/chat/completions", json={**CHAT, **fields}).json()
    sent = [chunk["choices"][0] for chunk in chunks(**fields)]
    for expected in whole["choices"]:
        first, *deltas, last = [choice for choice in sent if choice["index"] == expected["index"]]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert (last["delta"], last["finish_reason"]) == ({}, expected["finish_reason"])
        assert all(choice["finish_reason"] is None for choice in (first, *deltas))
        content = "".join(choice["delta"].get("content", "") for choice in deltas)
        calls = [call for choice in deltas for call in choice["delta"].get("tool_calls", [])]
        message = expected["message"]
        assert content == (message["content"] or "")
        assert [{key: call[key] for key in ("id", "type", "function")} for call in calls] == message.get(
            "tool_calls", []
        )
        entries = [entry for choice in (*deltas, last) for entry in (choice["logprobs"] or {"content": []})["content"]]
        assert [entry["token"] for entry in entries] == [one["token"] for one in expected["logprobs"]["content"]]


def test_chunks_are_in_openais_form(chunks: Callable[..., list[Any]]) -> None:
    sent = chunks(stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in sent} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in sent}) == 1
    assert [chunk["usage"] for chunk in sent[:-1]] == [None] * (len(sent) - 1)
    assert sent[-1]["choices"] == []
    usage = sent[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert all("usage" not in chunk for chunk in chunks())


def test_openais_client_reads_chunks_and_the_whole(openai: OpenAI) -> None:
    with openai.chat.completions.stream(
        model="student",
        messages=[USER],
        tools=[CALCULATOR_SCHEMA],
        seed=5,
        max_tokens=60,  # type: ignore[list-item]
    ) as stream:
        types = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert "chunk" in types
    assert answer.choices[0].finish_reason in {"tool_calls", "stop"}


def test_a_text_completion_is_streamed_too(http: httpx.Client, openai: OpenAI) -> None:
    body: dict[str, Any] = {"model": "student", "prompt": ["Ben has", "Ann"], "max_tokens": 12, "seed": 1, "n": 2}
    whole = [choice.text for choice in openai.completions.create(**body).choices]
    *sent, done = events(http, "/completions", {**body, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    texts = ["", "", "", ""]
    for chunk in sent[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == whole
    assert sent[-1]["usage"]["completion_tokens"] > 0


def test_a_stop_string_ends_an_answer_before_it_streamed_or_not(
    http: httpx.Client, chunks: Callable[..., list[Any]]
) -> None:
    body = {**CHAT, "temperature": 0, "messages": [{"role": "user", "content": "Ben has 12 eggs."}]}
    whole = http.post("/chat/completions", json=body).json()
    text = whole["choices"][0]["message"]["content"]
    stop = text[5:9]
    left = text[: text.index(stop)]
    cut = http.post("/chat/completions", json={**body, "stop": ["never there", stop]}).json()
    assert (cut["choices"][0]["message"]["content"], cut["choices"][0]["finish_reason"]) == (left, "stop")
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]
    sent = [chunk["choices"][0] for chunk in chunks(**body, stop=stop)]
    assert "".join(choice["delta"].get("content", "") for choice in sent) == left
    assert sent[-1]["finish_reason"] == "stop"


def test_tokens_are_sent_as_they_are_sampled(http: httpx.Client) -> None:
    body = {**CHAT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/chat/completions", json=body) as answer:
        started = time.monotonic()
        times = [time.monotonic() - started for line in answer.iter_lines() if line]
    assert len(times) > 300
    assert times[10] < times[-1] / 4


def test_a_client_that_leaves_ends_its_completions(http: httpx.Client) -> None:
    before = http.get("/stats").json()
    for _ in range(3):
        body = {**CHAT, "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 2}
        with http.stream("POST", "/chat/completions", json=body) as answer:
            next(answer.iter_lines())
    deadline = time.monotonic() + 5
    while (stats := http.get("/stats").json())["sequences_inside"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stats["sequences_inside"] == 0
    assert stats["requests_abandoned"] - before["requests_abandoned"] == 3


def test_more_than_may_wait_is_a_429_and_no_stream(http: httpx.Client) -> None:
    long = {**CHAT, "max_tokens": 900, "ignore_eos": True, "n": 5, "stream": True}
    with http.stream("POST", "/chat/completions", json=long) as first:
        lines = first.iter_lines()  # kept, since a client that drops it leaves
        next(lines)
        answer = http.post("/chat/completions", json={**CHAT, "stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
