import logging
import math
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

import pytest

from stillhouse.errors import AuthenticationError, ConfigError, EndpointError, TrainingError
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.types import Sample

KINDS = ("vllm", "sglang", "echo")
Requests = list[Sample]
Far = Any
"""The fake server, and teachers connected to it; see conftest."""


@pytest.mark.parametrize(
    ("kind", "oddity"),
    [
        *((kind, {"num_alternatives": number}) for kind in KINDS for number in (0, 3)),
        ("vllm", {"max_logprobs": 0}),
        ("echo", {"takes_token_ids": False}),
    ],
)
def test_scores_are_those_of_the_sampled_tokens_whatever_the_server_adds_caps_or_reorders(
    far: Far, requests: Requests, kind: str, oddity: dict[str, Any]
) -> None:
    vars(far.server).update(oddity)
    assert far.score(requests, kind, batch_tokens=64) == far.truths(requests)
    if kind == "echo":
        assert ("return_tokens_as_token_ids" in far.server.bodies[-1]) == far.server.takes_token_ids


def test_sglang_is_asked_from_just_before_the_first_sampled_token(far: Far, requests: Requests) -> None:
    far.score(requests, "sglang")
    starts = [request.loss_mask.index(True) - 1 for request in requests]
    assert far.server.bodies[-1]["logprob_start_len"] == starts


def vllm_entry(change: Callable[[dict[str, Any], int], Any]) -> Callable[[Any], Any]:
    """Changes the last entry of the first choice's prompt_logprobs."""

    def spoil(answer: Any) -> Any:
        entries = answer["choices"][0]["prompt_logprobs"]
        [token] = [key for key in entries[-1] if entries[-1][key]["rank"] == 4]
        entries[-1] = change(entries[-1], token)
        return answer

    return spoil


def with_logprob(value: Any) -> Callable[[Any], Any]:
    return vllm_entry(lambda entry, token: {**entry, token: {**entry[token], "logprob": value}})


def each_choice(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def spoil(answer: Any) -> Any:
        return {"choices": [{**choice, name: change(choice[name])} for choice in answer["choices"]]}

    return spoil


def each_result(change: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def spoil(answer: Any) -> Any:
        triples = [result["meta_info"]["input_token_logprobs"] for result in answer]
        return [{"meta_info": {"input_token_logprobs": change(of_result)}} for of_result in triples]

    return spoil


def without_the_last_three(logprobs: dict[str, Any]) -> dict[str, Any]:
    return {key: values and values[:-3] for key, values in logprobs.items()}


def named_9(logprobs: dict[str, Any]) -> dict[str, Any]:
    return {**logprobs, "tokens": ["token_id:9"] * len(logprobs["tokens"])}


def equal_logprobs_in_batches(answer: Any) -> Any:
    """As a server gives that mixes up the sequences of a batch."""
    if len(answer["choices"]) > 1:
        for choice in answer["choices"]:
            for entry in choice["prompt_logprobs"][1:]:
                for token in entry.values():
                    token["logprob"] = -0.1
    return answer


@pytest.mark.parametrize(
    ("kind", "spoil", "message"),
    [
        ("vllm", vllm_entry(lambda entry, token: {"5": entry[token]}), r"token \d+ is missing.*'5'"),
        ("vllm", with_logprob(math.nan), " nan;"),
        ("vllm", with_logprob(-math.inf), " -inf;"),
        ("vllm", with_logprob(-9999.0), " -9999.0;"),
        ("vllm", with_logprob(0.5), " 0.5;.*at most 0"),
        ("vllm", with_logprob(None), " None;"),
        ("vllm", each_choice("prompt_logprobs", lambda entries: entries[:-1]), "63 prompt_logprobs.* 64"),
        ("vllm", each_choice("prompt_logprobs", lambda entries: [entries[1], *entries[1:]]), "expected None"),
        ("vllm", each_choice("prompt_logprobs", lambda entries: None), "no `prompt_logprobs`"),
        ("vllm", lambda answer: {"choices": []}, r"has choices \[\] for 1 prompts"),
        ("vllm", lambda answer: {"choices": None}, "no `choices`"),
        ("vllm", each_choice("index", lambda index: "a" if index else 0), r"choices .*'a'.* for 2 prompts"),
        ("sglang", each_result(lambda triples: triples[1:]), " 63 .* 64 "),
        ("sglang", each_result(lambda triples: [[-1.0, *t[1:]] for t in triples]), "expected None"),
        ("sglang", each_result(lambda triples: [t[:2] for t in triples]), "no triples"),
        ("sglang", lambda answer: answer[1:], "0 results"),
        ("echo", each_choice("logprobs", lambda logprobs: None), "no `logprobs`"),
        ("echo", each_choice("logprobs", without_the_last_three), " 62 .* 64"),
        ("echo", each_choice("logprobs", named_9), "token_id:9"),
    ],
)
def test_an_answer_that_cannot_be_used_ends_it_before_training_with_the_way_out(
    far: Far, kind: str, spoil: Callable[[Any], Any], message: str
) -> None:
    far.server.spoil = spoil
    with pytest.raises(EndpointError, match=f"{message}.*by SFT"):
        far.connect(kind)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (equal_logprobs_in_batches, "differs from itself by"),
        (lambda answer: b"<html>Welcome</html>", "HTTP 200.*<html>Welcome"),
    ],
)
def test_a_server_that_mixes_up_sequences_or_is_no_model_server_is_refused(
    far: Far, spoil: Callable[[Any], Any], message: str
) -> None:
    far.server.spoil = spoil
    with pytest.raises(EndpointError, match=message):
        far.connect()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_another_vocabulary_is_recognised_by_its_spelling(far: Far, kind: str) -> None:
    spell = far.server.spell
    far.server.spell = lambda token: spell(token + 1)
    with pytest.raises(TrainingError, match=r"vocabulary: of \d+ tokens tried \d+"):
        far.connect(kind)


def test_another_temperature_needs_a_server_that_tempers(far: Far, requests: Requests) -> None:
    with pytest.raises(ConfigError, match=r"temperature = 0\.5: teacher 'far'"):
        far.connect(temperature=0.5)
    far.server.tempers = True
    assert far.score(requests[:1], "sglang", temperature=0.5) == far.truths(requests[:1], 0.5)


def test_a_trajectory_longer_than_the_servers_context_says_what_to_raise(far: Far, requests: Requests) -> None:
    far.server.max_model_len = 65
    long = Sample([5] * 65, [False] + [True] * 64, "long")
    with pytest.raises(EndpointError, match=r" 65.*--max-model-len"):
        far.score([*requests, long])
    again = far.connect()
    assert again.max_context == 64
    num_scored = len(far.server.asked)
    again.start(requests).result(120)
    again.close()
    assert len(far.server.asked) == num_scored, "the others were scored by halves, and kept"


@pytest.fixture
def teacher(far: Far) -> Iterator[ServedTeacher]:
    """A teacher whose probe of the server is forgotten there."""
    connected = far.connect(batch_tokens=1000)
    far.server.bodies.clear()
    far.server.asked.clear()
    yield connected
    connected.close()


def test_a_server_that_runs_out_of_memory_is_asked_for_less_until_it_has_enough(
    far: Far, requests: Requests, teacher: ServedTeacher
) -> None:
    far.server.oom_tokens = 45
    assert far.logprobs(teacher.start(requests)) == far.truths(requests)
    assert far.server.asked == [request.token_ids for request in requests]
    far.server.failures = [far.server.refusal(400, "out of memory")]
    with pytest.raises(EndpointError, match=r"out of memory.*--max-num-batched-tokens.*batch_tokens"):
        teacher.start([Sample([5, 6], [False, True], "p")]).result(120)


def test_no_more_requests_are_under_way_than_allowed(far: Far, requests: Requests) -> None:
    far.server.delay_s = 0.01
    far.score(requests, batch_tokens=1)
    assert 1 < far.server.most_at_once <= 8


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "small"}, EndpointError, r"'small'.*\['big'\]"),
        ({"api_key_env": "TEACHER_KEY_NOBODY_SET"}, AuthenticationError, "TEACHER_KEY_NOBODY_SET"),
        ({"base_url": "http://127.0.0.1:9/v1"}, EndpointError, ":9/v1"),
    ],
)
def test_server_model_and_key_must_be_there(
    far: Far, settings: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        far.connect(**settings)


@pytest.mark.parametrize("body", [b"<html>", b"null", b"[]", b'{"data": null}', b'{"data": [{}]}', b'{"data": [7]}'])
def test_an_answer_without_a_list_of_models_is_refused(far: Far, body: bytes) -> None:
    far.server.models = body
    with pytest.raises(EndpointError, match=r"/v1/models: .*base_url"):
        far.connect()


@pytest.mark.parametrize("length", [b'"4096"', b"0", b"null", b"true"])
def test_a_length_that_is_no_positive_number_is_not_known(far: Far, length: bytes) -> None:
    far.server.models = b'{"data": [{"id": "big", "max_model_len": %s}]}' % length
    teacher = far.connect()
    teacher.close()
    assert teacher.max_context is None


def test_nothing_is_asked_twice(far: Far, requests: Requests) -> None:
    first = far.score([*requests, *requests])
    again = far.connect()
    num_scored = len(far.server.asked)
    assert far.logprobs(again.start(requests)) == first[: len(requests)] == first[len(requests) :]
    again.close()
    assert len(far.server.asked) == num_scored
    assert sum(ids in [request.token_ids for request in requests] for ids in far.server.asked) == len(requests)


def test_the_ledger_keeps_masks_teachers_and_temperatures_apart(far: Far, requests: Requests) -> None:
    far.server.tempers = True
    request = requests[1]
    other_mask = Sample(request.token_ids, [False, *[True] * 39], "p")
    cases = (("vllm", 1.0, request), ("vllm", 1.0, other_mask), ("vllm", 2.0, request), ("sglang", 1.0, request))
    results = [far.score([scored], kind, temperature)[0] for kind, temperature, scored in cases]
    assert far.server.asked.count(request.token_ids) == 4
    assert results[0] == results[3] != results[2]
    assert results[1][1] != 0.0


@pytest.mark.parametrize("kind", ["vllm", "echo"])
def test_our_own_server_answers_as_vllm_does(
    far: Far, own_server: str, requests: Requests, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    from stillhouse.serving.models import load_model
    from stillhouse.serving.score import score_tokens

    with caplog.at_level(logging.WARNING):
        scores = far.score(requests, kind, base_url=own_server)
    expected = score_tokens(load_model("embedded:teacher", device="cpu"), [r.token_ids for r in requests])
    for request, seen, row in zip(requests, scores, expected, strict=True):
        assert seen == pytest.approx(list(compress(row, request.loss_mask)), abs=1e-4)
    assert not caplog.records


def test_replicas_that_differ_are_not_trusted(far: Far) -> None:
    def of_a_replica(answer: Any) -> Any:
        if far.server.most_at_once > 1:
            for entry in answer["choices"][0]["prompt_logprobs"][1:]:
                for token in entry.values():
                    token["logprob"] -= 0.1
        return answer

    far.server.spoil, far.server.delay_s = of_a_replica, 0.02
    with pytest.raises(EndpointError, match=r"8 times at once.* 0\.1 nats"):
        far.connect("vllm")


def test_other_weights_behind_the_same_name_are_asked_again(
    far: Far, requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    first = far.score(requests)
    far.server.spoil = each_choice(
        "prompt_logprobs",
        lambda entries: [
            entry and {token: {**one, "logprob": one["logprob"] - 1.0} for token, one in entry.items()}
            for entry in entries
        ],
    )
    second = far.score(requests)
    assert "other weights answer to its name" in caplog.text
    for one, other in zip(first, second, strict=True):
        assert other == pytest.approx([value - 1.0 for value in one])
