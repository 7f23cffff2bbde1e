import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyTeacher
from stillhouse.errors import AuthenticationError, ConfigError, EndpointError, TrainingError
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest

KINDS = ("vllm", "sglang", "echo")
Settings = Callable[..., OnPolicyTeacher]


TOKENIZER = load_tokenizer("embedded:student")


def teacher_of(settings: OnPolicyTeacher, work_dir: Path, temperature: float = 1.0) -> ServedTeacher:
    return connect(settings, 1.0, temperature, TOKENIZER, None, work_dir)


def score(teacher: ServedTeacher, requests: list[ScoreRequest]) -> list[list[float]]:
    try:
        return teacher.start(requests).result(20)
    finally:
        teacher.close()


def truths(server: Any, requests: list[ScoreRequest]) -> list[list[float]]:
    return [
        [server.truth(r.token_ids, place) if scored else 0.0 for place, scored in enumerate(r.loss_mask)]
        for r in requests
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_alternatives", [0, 3])
def test_scores_are_those_of_the_sampled_tokens_whatever_the_order_of_the_answer(
    scoring_server: Any,
    settings: Settings,
    requests: list[ScoreRequest],
    tmp_path: Path,
    kind: str,
    num_alternatives: int,
) -> None:
    scoring_server.num_alternatives = num_alternatives
    scores = score(teacher_of(settings(kind, batch_tokens=64), tmp_path), requests)
    assert scores == truths(scoring_server, requests)


def test_sglang_is_asked_from_just_before_the_first_sampled_token(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    score(teacher_of(settings("sglang"), tmp_path), requests)
    assert scoring_server.bodies[-1]["logprob_start_len"] == [request.loss_mask.index(True) - 1 for request in requests]


def test_a_cap_on_alternatives_does_not_matter_to_vllm(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    scoring_server.max_logprobs = 0
    assert score(teacher_of(settings("vllm"), tmp_path), requests) == truths(scoring_server, requests)


@pytest.mark.parametrize("takes_token_ids", [True, False])
def test_echo_asks_for_token_ids_where_the_server_takes_them(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path, takes_token_ids: bool
) -> None:
    scoring_server.takes_token_ids = takes_token_ids
    assert score(teacher_of(settings("echo"), tmp_path), requests) == truths(scoring_server, requests)
    assert ("return_tokens_as_token_ids" in scoring_server.bodies[-1]) == takes_token_ids


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
        return [
            {"meta_info": {"input_token_logprobs": change(one["meta_info"]["input_token_logprobs"])}} for one in answer
        ]

    return spoil


@pytest.mark.parametrize(
    ("kind", "spoil", "told"),
    [
        ("vllm", vllm_entry(lambda entry, token: {"5": entry[token]}), r"of token \d+ is missing; there are .*'5'"),
        ("vllm", with_logprob(math.nan), "is nan; expected a finite"),
        ("vllm", with_logprob(-math.inf), "is -inf; expected a finite"),
        ("vllm", with_logprob(-9999.0), "is -9999.0; expected a finite"),
        ("vllm", with_logprob(0.5), "is 0.5; expected a finite number of at most 0"),
        ("vllm", with_logprob(None), "is None; expected a number"),
        ("vllm", each_choice("prompt_logprobs", lambda entries: entries[:-1]), r"has 63 prompt_logprobs for 64 tokens"),
        ("vllm", each_choice("prompt_logprobs", lambda entries: [entries[1], *entries[1:]]), "expected None"),
        ("vllm", each_choice("prompt_logprobs", lambda entries: None), "has no `prompt_logprobs`"),
        ("vllm", lambda answer: {"choices": []}, r"has choices \[\] for 1 prompts"),
        ("vllm", lambda answer: {"choices": None}, "no `choices`"),
        ("vllm", each_choice("index", lambda index: "a" if index else 0), r"choices .*'a'.* for 2 prompts"),
        ("sglang", each_result(lambda triples: triples[1:]), "those of 63 other tokens than the 64 asked"),
        ("sglang", each_result(lambda triples: [[-1.0, *t[1:]] for t in triples]), "expected None"),
        ("sglang", each_result(lambda triples: [t[:2] for t in triples]), "no triples"),
        ("sglang", lambda answer: answer[1:], "has 0 results for 1 prompts"),
        ("echo", each_choice("logprobs", lambda found: None), "has no `logprobs`"),
        (
            "echo",
            each_choice("logprobs", lambda found: {k: v and v[:-3] for k, v in found.items()}),
            "62 echoed tokens for 64",
        ),
        (
            "echo",
            each_choice("logprobs", lambda found: {**found, "tokens": ["token_id:9"] * len(found["tokens"])}),
            r"echoes token_id:9 in place of token",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_ends_it_before_training_with_the_way_out(
    scoring_server: Any, settings: Settings, tmp_path: Path, kind: str, spoil: Callable[[Any], Any], told: str
) -> None:
    scoring_server.spoil = spoil
    with pytest.raises(EndpointError, match=f"{told}.*by SFT"):
        teacher_of(settings(kind), tmp_path)


def test_a_server_that_mixes_up_sequences_is_found_out(scoring_server: Any, settings: Settings, tmp_path: Path) -> None:
    def swapped(answer: Any) -> Any:
        if len(answer["choices"]) > 1:
            for choice in answer["choices"]:
                entries = choice["prompt_logprobs"]
                choice["prompt_logprobs"] = [
                    None,
                    *({k: {**v, "logprob": -0.1} for k, v in e.items()} for e in entries[1:]),
                ]
        return answer

    scoring_server.spoil = swapped
    with pytest.raises(EndpointError, match="differs from itself by"):
        teacher_of(settings("vllm"), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_another_vocabulary_is_found_out_by_its_spelling(
    scoring_server: Any, settings: Settings, tmp_path: Path, kind: str
) -> None:
    spell = scoring_server.spell
    scoring_server.spell = lambda token: spell(token + 1)
    with pytest.raises(TrainingError, match=r"does not share the student's vocabulary: of \d+ tokens tried \d+ differ"):
        teacher_of(settings(kind), tmp_path)


def test_another_temperature_needs_a_server_that_tempers(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"temperature = 0\.5: teacher 'far' gives the same log-probabilities"):
        teacher_of(settings("vllm"), tmp_path, temperature=0.5)
    scoring_server.tempers = True
    [scores] = score(teacher_of(settings("sglang"), tmp_path, temperature=0.5), requests[:1])
    assert scores[1] == scoring_server.truth(requests[0].token_ids, 1, 0.5)


def test_a_trajectory_longer_than_the_servers_context_says_what_to_raise(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    scoring_server.max_model_len = 65
    teacher = teacher_of(settings("vllm"), tmp_path)
    assert teacher.max_context == 64
    long = ScoreRequest([5] * 65, [False] + [True] * 64, "long")
    with pytest.raises(EndpointError, match=r"maximum context length is 65.*--max-model-len"):
        score(teacher, [*requests, long])
    again = teacher_of(settings("vllm"), tmp_path)
    num_asked = len(scoring_server.asked)
    score(again, requests)
    assert len(scoring_server.asked) == num_asked  # the others were scored by halves, and kept


@pytest.fixture
def connected(settings: Settings, tmp_path: Path) -> Iterator[ServedTeacher]:
    """A teacher behind the fake server, of which what was asked while it was probed is forgotten."""
    teacher = teacher_of(settings("vllm", batch_tokens=1000, max_in_flight=2, request_timeout_s=1.0), tmp_path)
    yield teacher
    teacher.close()


@pytest.fixture
def unhurried(scoring_server: Any, connected: ServedTeacher) -> ServedTeacher:
    scoring_server.bodies.clear()
    scoring_server.asked.clear()
    return connected


def test_a_busy_server_is_waited_for_as_long_as_it_says(
    scoring_server: Any, requests: list[ScoreRequest], unhurried: ServedTeacher
) -> None:
    scoring_server.failures = [scoring_server.refusal(429, "too many requests", {"Retry-After": "0.4"})]
    started = time.monotonic()
    assert unhurried.start(requests).result(20) == truths(scoring_server, requests)
    assert time.monotonic() - started >= 0.4
    assert len(scoring_server.bodies) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_waited_for_before_the_training_too(
    scoring_server: Any, settings: Settings, tmp_path: Path, status: int
) -> None:
    scoring_server.failures = [scoring_server.refusal(status, "loading", {"Retry-After": "0.2"})]
    started = time.monotonic()
    teacher_of(settings("vllm"), tmp_path).close()
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("status", [400, 413, 500, 503])
def test_a_batch_that_a_server_fails_on_is_asked_by_halves(
    scoring_server: Any, requests: list[ScoreRequest], unhurried: ServedTeacher, status: int
) -> None:
    scoring_server.failures = [scoring_server.refusal(status, "no")]
    assert unhurried.start(requests).result(20) == truths(scoring_server, requests)
    assert [len(body["prompt"]) for body in scoring_server.bodies] == [3, 3]


def test_a_server_that_runs_out_of_memory_is_asked_for_less_until_it_has_enough(
    scoring_server: Any, requests: list[ScoreRequest], unhurried: ServedTeacher
) -> None:
    scoring_server.oom_tokens = 45
    assert unhurried.start(requests).result(20) == truths(scoring_server, requests)
    assert scoring_server.asked == [request.token_ids for request in requests]
    scoring_server.failures = [scoring_server.refusal(400, "out of memory")]
    with pytest.raises(EndpointError, match=r"out of memory.*--max-num-batched-tokens.*batch_tokens"):
        unhurried.start([ScoreRequest([5, 6], [False, True], "p")]).result(20)


def test_a_server_that_answers_late_is_asked_for_less(
    scoring_server: Any, requests: list[ScoreRequest], unhurried: ServedTeacher
) -> None:
    slow = [1.2]
    scoring_server.spoil = lambda answer: (time.sleep(slow.pop() if slow else 0.0), answer)[1]
    assert unhurried.start(requests).result(20) == truths(scoring_server, requests)


def test_no_more_requests_are_under_way_than_allowed(
    scoring_server: Any, requests: list[ScoreRequest], settings: Settings, tmp_path: Path
) -> None:
    scoring_server.delay_s = 0.01
    teacher = teacher_of(settings("vllm", batch_tokens=1, max_in_flight=3), tmp_path)
    score(teacher, requests)
    assert 1 < scoring_server.most_at_once <= 3


def test_the_model_and_the_key_must_be_known(scoring_server: Any, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"does not serve 'small'; expected one of \['big'\]"):
        teacher_of(settings("vllm", model="small"), tmp_path)
    with pytest.raises(AuthenticationError, match="TEACHER_KEY_NOBODY_SET is not set"):
        teacher_of(settings("vllm", api_key_env="TEACHER_KEY_NOBODY_SET"), tmp_path)
    with pytest.raises(EndpointError, match="Check that the teacher's server runs"):
        teacher_of(settings("vllm", base_url="http://127.0.0.1:9/v1"), tmp_path)


def test_an_answer_that_is_no_json_is_shown(scoring_server: Any, settings: Settings, tmp_path: Path) -> None:
    scoring_server.spoil = lambda answer: b"<html>Welcome</html>"
    with pytest.raises(EndpointError, match="HTTP 200, but its body is no JSON: <html>Welcome"):
        teacher_of(settings("vllm"), tmp_path)


@pytest.mark.parametrize("body", [b"<html>", b"null", b"[]", b'{"data": null}', b'{"data": [{}]}', b'{"data": [7]}'])
def test_what_is_no_list_of_models_is_no_server_of_models(
    scoring_server: Any, settings: Settings, tmp_path: Path, body: bytes
) -> None:
    scoring_server.models = body
    with pytest.raises(EndpointError, match=r"/v1/models: no list of models: .* Check base_url"):
        teacher_of(settings("vllm"), tmp_path)


@pytest.mark.parametrize("length", ['"4096"', "0", "null", "true"])
def test_a_length_that_is_none_is_not_known(
    scoring_server: Any, settings: Settings, tmp_path: Path, length: str
) -> None:
    scoring_server.models = b'{"data": [{"id": "big", "max_model_len": %s}]}' % length.encode()
    teacher = teacher_of(settings("vllm"), tmp_path)
    teacher.close()
    assert teacher.max_context is None


def test_nothing_is_asked_twice(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    first = score(teacher_of(settings("vllm"), tmp_path), [*requests, *requests])
    teacher = teacher_of(settings("vllm"), tmp_path)
    num_asked = len(scoring_server.asked)
    assert score(teacher, requests) == first[: len(requests)] == first[len(requests) :]
    assert len(scoring_server.asked) == num_asked
    of_requests = [ids for ids in scoring_server.asked if ids in [r.token_ids for r in requests]]
    assert len(of_requests) == len(requests)


def test_the_journal_tells_masks_teachers_and_temperatures_apart(
    scoring_server: Any, settings: Settings, requests: list[ScoreRequest], tmp_path: Path
) -> None:
    scoring_server.tempers = True
    [request] = requests[1:2]
    other_mask = ScoreRequest(request.token_ids, [False, *[True] * 39], "p")
    results = [
        score(teacher_of(settings(kind), tmp_path, temperature), [asked])[0]
        for kind, temperature, asked in (
            ("vllm", 1.0, request),
            ("vllm", 1.0, other_mask),
            ("vllm", 2.0, request),
            ("sglang", 1.0, request),
        )
    ]
    assert scoring_server.asked.count(request.token_ids) == 4
    assert results[0] == results[3] != results[2]
    assert results[1][1] != 0.0


@pytest.mark.parametrize("kind", ["vllm", "echo"])
def test_our_own_server_answers_as_vllm_does(
    own_server: str, requests: list[ScoreRequest], tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    from stillhouse.serving.models import load_model
    from stillhouse.serving.score import score_tokens

    settings = OnPolicyTeacher.model_validate({"name": "far", "kind": kind, "model": "big", "base_url": own_server})
    with caplog.at_level(logging.WARNING):
        scores = score(teacher_of(settings, tmp_path), requests)
    expected = score_tokens(load_model("embedded:teacher", device="cpu"), [r.token_ids for r in requests])
    for request, seen, known in zip(requests, scores, expected, strict=True):
        masked = [value if sampled else 0.0 for value, sampled in zip(known, request.loss_mask, strict=True)]
        assert seen == pytest.approx(masked, abs=1e-4)
    assert not caplog.records
