import asyncio
import time
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI, RateLimitError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.template import render
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.score import rank_tokens, score_tokens

USER: dict[str, Any] = {
    "role": "user",
    "content": "Ben has 12 eggs. Ben finds 5 more. How many eggs does Ben have now?",
}
LONG = {"model": "student", "prompt": [7] * 20, "max_tokens": 990, "ignore_eos": True}
SHORT: Any = {"model": "student", "prompt": [7] * 20, "max_tokens": 200, "extra_body": {"ignore_eos": True}}


def test_chat_answers_with_the_seeds_tokens_their_logprobs_and_usage(
    openai: OpenAI, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    answer = openai.chat.completions.create(
        model="student", messages=[USER], tools=[CALCULATOR_SCHEMA], max_tokens=40, seed=5, logprobs=True,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    prompt_ids = render(tokenizer, [USER], [CALCULATOR_SCHEMA], add_generation_prompt=True)  # type: ignore[list-item]
    [expected] = Generator(model).run([GenerationRequest(prompt_ids, 40, seed=5, stop_ids=frozenset({2}))])
    [choice] = answer.choices
    raw = answer.model_dump()
    assert raw["prompt_token_ids"] == prompt_ids
    assert raw["choices"][0]["token_ids"] == expected.completion_ids
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(expected.logprobs, abs=1e-4)
    sizes = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
    assert sizes == (len(prompt_ids), len(expected.completion_ids), len(prompt_ids) + len(expected.completion_ids))


def test_a_seed_repeats_an_answer_and_without_one_and_in_n_choices_answers_differ(openai: OpenAI) -> None:
    def answers(n: int, seed: int | None) -> list[str]:
        settings: Any = {"max_tokens": 12, "temperature": 3.0, "n": n, "seed": seed}
        return [choice.text for choice in openai.completions.create(model="student", prompt=[7, 8], **settings).choices]

    three = answers(3, seed=3)
    assert answers(3, seed=3) == three
    assert len(set(three)) == 3
    assert answers(1, seed=3) == three[:1]
    assert len({answers(1, seed=None)[0] for _ in range(3)}) == 3


def test_a_cut_answer_has_the_best_alternatives_of_the_tempered_distribution(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="student", messages=[USER], max_completion_tokens=3, seed=1, temperature=3.0, logprobs=True,
        top_logprobs=4,
    )  # fmt: skip
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)
    for entry in answer.choices[0].logprobs.content:
        top = {alternative.token: alternative.logprob for alternative in entry.top_logprobs}
        assert len(entry.top_logprobs) == 4
        assert list(top.values()) == sorted(top.values(), reverse=True)
        if entry.token in top:
            assert top[entry.token] == pytest.approx(entry.logprob, abs=1e-4)
        else:
            assert entry.logprob <= min(top.values())


def test_raw_alternatives_by_id_are_those_of_the_untempered_distribution(
    http: httpx.Client, model: PreTrainedModel
) -> None:
    body = {
        "model": "student", "messages": [USER], "max_tokens": 3, "seed": 1, "temperature": 3.0, "logprobs": True,
        "top_logprobs": 4, "raw_logprobs": True, "return_tokens_as_token_ids": True, "return_token_ids": True,
    }  # fmt: skip
    answer = http.post("/chat/completions", json=body).json()
    [choice] = answer["choices"]
    ids = [*answer["prompt_token_ids"], *choice["token_ids"]]
    expected = rank_tokens(model, [ids], 4)[0][-3:]
    for token, entry, ranked in zip(choice["token_ids"], choice["logprobs"]["content"], expected, strict=True):
        assert entry["token"] == f"token_id:{token}"
        assert entry["logprob"] == pytest.approx(ranked.logprob, abs=1e-4)
        assert [other["token"] for other in entry["top_logprobs"]] == [f"token_id:{other}" for other, _ in ranked.top]
        assert [other["logprob"] for other in entry["top_logprobs"]] == pytest.approx(
            [logprob for _, logprob in ranked.top], abs=1e-4
        )
    refused = http.post("/chat/completions", json={**body, "top_logprobs": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "raw_logprobs")


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_echo_scores_the_prompt_with_none_first(
    http: httpx.Client, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kind: str
) -> None:
    text = "Ben has 12 eggs."
    ids = tokenizer(text)["input_ids"]
    body = {"model": "student", "prompt": text if kind == "text" else ids, "echo": True, "logprobs": 2, "max_tokens": 0}
    answer = http.post("/completions", json=body).json()
    [choice] = answer["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == text
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(score_tokens(model, [ids])[0][1:], abs=1e-4)
    assert "".join(logprobs["tokens"]) == text
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[offset:].startswith(token)
    assert logprobs["top_logprobs"][0] is None
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])
    assert answer["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 0, "total_tokens": len(ids)}


def test_echo_with_one_token_appends_it_to_all_lists(http: httpx.Client) -> None:
    body = {
        "model": "student", "prompt": [30, 40, 50], "echo": True, "logprobs": 1, "max_tokens": 1,
        "return_tokens_as_token_ids": True, "return_token_ids": True,
    }  # fmt: skip
    [choice] = http.post("/completions", json=body).json()["choices"]
    tokens = choice["logprobs"]["tokens"]
    assert tokens[:3] == ["token_id:30", "token_id:40", "token_id:50"]
    assert tokens[3] == f"token_id:{choice['token_ids'][0]}"
    assert [len(choice["logprobs"][name]) for name in ("token_logprobs", "top_logprobs", "text_offset")] == [4, 4, 4]
    assert all(token in top for token, top in zip(tokens[1:], choice["logprobs"]["top_logprobs"][1:], strict=True))


@pytest.mark.parametrize("num_top", [0, 3])
def test_prompt_logprobs_hold_the_actual_token_by_id_beside_the_best(
    http: httpx.Client, model: PreTrainedModel, num_top: int
) -> None:
    ids = [30, 40, 50, 31, 2, 1]
    body = {
        "model": "student", "prompt": [ids, ids[:4]], "max_tokens": 1, "temperature": 0.3, "prompt_logprobs": num_top
    }  # fmt: skip
    choices = http.post("/completions", json=body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for choice, tokens in zip(choices, (ids, ids[:4]), strict=True):
        first, *entries = choice["prompt_logprobs"]
        assert first is None
        expected = score_tokens(model, [tokens])[0][1:]
        for token, entry, logprob in zip(tokens[1:], entries, expected, strict=True):
            assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-4), "untempered"
            assert len(entry) in ({1} if num_top == 0 else {num_top, num_top + 1})
            ranks = sorted(value["rank"] for value in entry.values())
            assert ranks[:num_top] == list(range(1, num_top + 1))
            by_rank = sorted(entry.values(), key=lambda value: value["rank"])
            assert [value["logprob"] for value in by_rank] == sorted((v["logprob"] for v in by_rank), reverse=True)


def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        openai.chat.completions.create(model="student", messages=[{"role": "user", "content": "7" * 1100}])
    assert caught.value.code == "context_length_exceeded"
    assert "1024" in caught.value.message
    assert "has 1108 tokens" in caught.value.message


def test_a_prompt_that_just_fits_can_be_scored_but_not_continued(http: httpx.Client) -> None:
    body = {"model": "student", "prompt": [7] * 1024, "prompt_logprobs": 0}
    assert http.post("/completions", json={**body, "max_tokens": 0}).status_code == 200
    refused = http.post("/completions", json={**body, "max_tokens": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_with_a_limit_beyond_the_context_ends_with_the_context(http: httpx.Client, field: str) -> None:
    body = {"model": "student", "messages": [USER], field: 5000, "ignore_eos": True}
    answer = http.post("/chat/completions", json=body).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 1024)


def test_a_body_that_is_not_json_is_a_400(http: httpx.Client) -> None:
    answer = http.post("/chat/completions", content=b'{"model": ', headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


def test_a_model_is_described_by_its_name_and_another_is_a_404(openai: OpenAI) -> None:
    assert openai.models.retrieve("student") == next(iter(openai.models.list()))
    for name in ("gpt-9", "Qwen/Qwen3-4B"):
        with pytest.raises(NotFoundError, match=name) as caught:
            openai.models.retrieve(name)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(NotFoundError, match="student"):
        openai.chat.completions.create(model="gpt-9", messages=[USER])  # type: ignore[list-item]


def test_more_than_may_wait_is_a_429_with_retry_after_and_counted(server: str, http: httpx.Client) -> None:
    async def flood() -> list[int | RateLimitError]:
        async with AsyncOpenAI(base_url=server, api_key="secret", max_retries=0) as client:

            async def ask() -> int | RateLimitError:
                try:
                    return (await client.completions.create(**SHORT)).usage.completion_tokens
                except RateLimitError as error:
                    return error

            return list(await asyncio.gather(*(ask() for _ in range(9))))

    before = http.get("/stats").json()
    outcomes = asyncio.run(flood())
    refused = [outcome for outcome in outcomes if isinstance(outcome, RateLimitError)]
    assert len(refused) == 4, "two run and three wait"
    assert refused[0].code == "rate_limit_exceeded"
    assert int(refused[0].response.headers["retry-after"]) >= 1
    after = http.get("/stats").json()
    assert after["requests_accepted"] - before["requests_accepted"] == 5
    assert after["requests_completed"] - before["requests_completed"] == 5
    assert after["requests_rejected"]["429"] - before["requests_rejected"].get("429", 0) == 4
    answered = sum(outcome for outcome in outcomes if isinstance(outcome, int))
    assert after["completion_tokens"] - before["completion_tokens"] == answered


def test_clients_that_leave_free_their_places(http: httpx.Client) -> None:
    before = http.get("/stats").json()["requests_abandoned"]
    for _ in range(5):
        with pytest.raises(httpx.ReadTimeout):
            http.post("/completions", json=LONG, timeout=httpx.Timeout(5.0, read=0.1))
    deadline = time.monotonic() + 60
    while (stats := http.get("/stats").json())["sequences_inside"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (stats["sequences_inside"], stats["requests_abandoned"] - before) == (0, 5)
    assert http.post("/completions", json={**LONG, "max_tokens": 2}).status_code == 200


def test_a_stop_string_ends_an_answer_before_it(http: httpx.Client) -> None:
    body = {"model": "student", "messages": [USER], "max_tokens": 40, "seed": 5, "temperature": 0}
    whole = http.post("/chat/completions", json=body).json()
    text = whole["choices"][0]["message"]["content"]
    stop = text[5:9]
    cut = http.post("/chat/completions", json={**body, "stop": ["never there", stop]}).json()
    [choice] = cut["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


def test_text_parts_and_the_developer_role_are_understood(http: httpx.Client) -> None:
    def ids(messages: list[dict[str, Any]]) -> list[int]:
        body = {"model": "student", "messages": messages, "max_tokens": 1, "return_token_ids": True}
        return http.post("/chat/completions", json=body).json()["prompt_token_ids"]

    parts = [{"type": "text", "text": "Ben has "}, {"type": "text", "text": "12 eggs."}]
    assert ids([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]) == ids(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ben has 12 eggs."}]
    )
