"""The first question to a paid model: what is wrong with it is one sentence before the second request."""

import http.server
import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from stillhouse.config import load_config
from stillhouse.inspection import Finding
from tasks.first_question import examine_models
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

Shell = Callable[..., tuple[int, str]]
PAGE = b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>"
READY = Reply(completion("ready"))
PRICE = {"prompt": 1.0, "completion": 2.0}
GEMINI = {"code": 404, "message": "models/gpt-5.22 is not found for API version v1main", "status": "NOT_FOUND"}
LOCATED = {"code": 400, "message": "User location is not supported for the API use.", "status": "FAILED_PRECONDITION"}
CUT = "Could not finish the message because max_tokens or model output limit was reached. Please try again with higher."
# Each refusal as its seller wrote it, and the words of the finding.
REFUSALS = {
    "OpenAI, typo": (
        error(404, "The model `gpt-5.22` does not exist or you do not have access to it.", code="model_not_found"),
        "Did you mean gpt-5.2?",
    ),
    "OpenAI, project": (
        error(403, "Project `proj_x` does not have access to model `gpt-5.22`", code="model_not_found"),
        "Did you mean gpt-5.2?",
    ),
    "Anthropic, typo": (error(404, "model: gpt-5.22", kind="not_found_error"), "Did you mean gpt-5.2?"),
    "DeepSeek, typo": (error(400, "Model Not Exist", code="invalid_request_error"), "Did you mean gpt-5.2?"),
    "OpenRouter, typo": (error(400, "gpt-5.22 is not a valid model ID", code=400), "Did you mean gpt-5.2?"),
    "Mistral, typo": (
        Reply({"object": "error", "message": "Invalid model: gpt-5.22", "type": "invalid_model"}, 400),
        "Did you mean gpt-5.2?",
    ),
    "Gemini, typo": (Reply(json.dumps([{"error": GEMINI}]).encode(), 404), "Did you mean gpt-5.2?"),
    "Ollama, typo": (error(404, 'model "gpt-5.22" not found, try pulling it first'), "Did you mean gpt-5.2?"),
    "Together, typo": (error(404, "Unable to access model gpt-5.22. See the list."), "Did you mean gpt-5.2?"),
    "Azure, deployment": (
        error(404, "The API deployment for this resource does not exist.", code="DeploymentNotFound"),
        "Did you mean gpt-5.2?",
    ),
    "Bedrock, name": (error(400, "The provided model identifier is invalid."), "Did you mean gpt-5.2?"),
    "Bedrock, region": (
        error(
            400, "Invocation of model ID x with on-demand throughput isn't supported. Retry with an inference profile"
        ),
        "teacher.base_url to another region's",
    ),
    "OpenAI, region": (
        error(403, "Country, region, or territory not supported", code="unsupported_country_region_territory"),
        "teacher.base_url to another region's",
    ),
    "Gemini, region": (Reply(json.dumps([{"error": LOCATED}]).encode(), 400), "teacher.base_url to another region's"),
    "OpenAI, no money": (
        error(429, "You exceeded your current quota.", code="insufficient_quota", kind="insufficient_quota"),
        "no credit",
    ),
    "DeepSeek, no money": (error(402, "Insufficient Balance", code="invalid_request_error"), "no credit"),
    "OpenAI, wrong key": (
        error(401, "Incorrect API key provided", code="invalid_api_key"),
        "the API key was refused",
    ),
    "OpenAI, embeddings": (error(403, "You are not allowed to sample from this model"), "Change teacher.api"),
    "Ollama, tools": (error(400, "registry.ollama.ai/library/gemma:2b does not support tools"), "Change tools"),
    "OpenRouter, tools": (
        error(404, "No endpoints found that support tool use. To learn more about provider routing, visit", code=404),
        "Change tools",
    ),
    "vLLM, tools": (
        error(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        "Change tools",
    ),
    "DeepSeek, tools": (error(400, "deepseek-reasoner does not support Function Calling"), "Change tools"),
    "OpenAI, logprobs": (
        error(403, "You are not allowed to request logprobs from this model"),
        "rollouts.record_top_k",
    ),
    "Groq, logprobs": (error(400, "`logprobs` is not supported with this model"), "rollouts.record_top_k"),
    "a model that leaves them out": (Reply(completion("ready")), "without the log-probabilities"),
    "OpenAI, effort": (
        error(400, "Unsupported value: 'low' is not supported with the 'gpt-5.22' model.", code="unsupported_value"),
        "refuses even a question of one line",
    ),
    "a page": (Reply(PAGE, 404), "Did you mean gpt-5.2?"),
    "moved": (
        Reply(b"", 308, headers={"location": "https://example.com/v1/chat/completions"}),
        "Set teacher.base_url to https://example.com/v1",
    ),
    "HTTP to HTTPS": (
        Reply(b"400 The plain HTTP request was sent to HTTPS port", 400),
        "Set teacher.base_url to https://127.0.0.1",
    ),
}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Write a config with a teacher at an endpoint, tools and log-probabilities, and return its name."""

    def write(url: str, **sections: dict[str, Any]) -> str:
        (tmp_path / "prompts.txt").write_text("".join(f"How much is {n} + {n}?\n" for n in range(5)))
        body: dict[str, Any] = {
            "prompts": {"source": "prompts.txt", "held_out_fraction": 0.0},
            "teacher": {"model": "gpt-5.22", "base_url": url, "usd_per_million_tokens": PRICE},
            "dataset": {"validation_fraction": 0.0, "labels": {"render": False}},
            "tracking": {"enabled": False},
            "runtime": {"store": "runs", "api_key_env": "STILLHOUSE_TEST_KEY", "max_attempts": 1},
        }
        for name, section in sections.items():
            body[name] = {**body.get(name, {}), **section}
        (tmp_path / "config.yaml").write_text(json.dumps(body))
        return "config.yaml"

    return write


def finding(output: str, name: str = "teacher") -> str:
    return next(line for line in output.splitlines() if f" {name}  " in line)


@pytest.fixture
def examined(config: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finding]:
    """Return what `stillhouse doctor` finds of the teacher."""

    def run(url: str, **sections: dict[str, Any]) -> Finding:
        monkeypatch.chdir(tmp_path)
        [finding] = examine_models(load_config(tmp_path / config(url, **sections)))
        return finding

    return run


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_wrong_with_a_model_is_one_sentence_after_one_request(
    examined: Callable[..., Finding], case: str
) -> None:
    reply, words = REFUSALS[case]
    with SimulatedProvider(lambda request: reply, models=["gpt-5-nano", "gpt-5.2", "o9"]) as provider:
        found = examined(provider.url, tools={"builtin": ["calculator"]}, rollouts={"record_top_k": 5})
    assert (found.ok, words in found.detail) == (False, True), found
    assert ".." not in found.detail
    assert found.detail.count("rollouts.record_top_k") <= 1
    assert len(provider.ledger) == 1


def test_a_model_that_speaks_responses_alone_is_asked_there_before_it_is_given_up(
    examined: Callable[..., Finding],
) -> None:
    refusal = error(404, "This model is only supported in v1/responses and not in v1/chat/completions.")
    with SimulatedProvider(lambda request: refusal) as provider:
        found = examined(provider.url)
    assert (found.ok, "teacher.api" in found.detail, len(provider.ledger)) == (False, True, 2), found


def test_the_doctor_names_the_nearest_model(shell: Shell, config: Callable[..., str]) -> None:
    reply, words = REFUSALS["OpenAI, typo"]
    with SimulatedProvider(lambda request: reply, models=["gpt-5-nano", "gpt-5.2", "o9"]) as provider:
        code, output = shell("doctor", config(provider.url))
    assert (code, finding(output).startswith("FAILED"), words in finding(output)) == (1, True, True), output


def test_a_schema_that_a_model_takes_in_no_form_is_known_at_once(examined: Callable[..., Finding]) -> None:
    refusal = error(400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.")
    with SimulatedProvider(lambda request: refusal) as provider:
        found = examined(provider.url, rollouts={"response_schema": {"type": "object"}})
    assert (found.ok, "Change rollouts.response_schema" in found.detail) == (False, True), found


@pytest.mark.parametrize(
    ("path", "has_models", "words"),
    [
        ("", True, "Set teacher.base_url to {root}/v1"),
        ("/v1/chat/completions", True, "Set teacher.base_url to {root}/v1"),
        ("/v1", False, "to one that speaks OpenAI's API"),
        ("/api", False, "to one that speaks OpenAI's API"),
    ],
)
@pytest.mark.parametrize("status", [200, 404])
def test_a_wrong_address_is_told_with_the_right_one(
    examined: Callable[..., Finding], path: str, has_models: bool, words: str, status: int
) -> None:
    with SimulatedProvider(lambda request: Reply(PAGE, status), models=["m"] * has_models) as provider:
        root = provider.url.removesuffix("/v1")
        found = examined(f"{root}{path}")
    assert (found.ok, words.format(root=root) in found.detail) == (False, True), found
    assert len(provider.ledger) <= 1


def test_https_to_a_server_of_http_is_told(examined: Callable[..., Finding]) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        found = examined(f"https://127.0.0.1:{server.server_port}/v1")
        server.shutdown()
    assert f"Set teacher.base_url to http://127.0.0.1:{server.server_port}/v1" in found.detail


def test_a_name_at_azure_is_the_name_of_a_deployment(
    examined: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = error(404, "The API deployment for this resource does not exist.", code="DeploymentNotFound")
    with SimulatedProvider(lambda request: refusal) as provider:
        monkeypatch.setenv("http_proxy", provider.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        found = examined("http://mine.openai.azure.com/openai/v1")
    assert "the name of a deployment" in found.detail


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(completion("ready", completion_tokens=3)), "answers a first question: 10 tokens for 0.000013 USD"),
        (error(400, CUT), "answers"),
        (Reply(completion("", finish_reason="length", message={"reasoning_content": "Well"})), "answers"),
        (error(400, "flagged as potentially violating our usage policy", code="invalid_prompt"), "answers"),
    ],
)
def test_a_model_that_works_is_asked_once_a_day(examined: Callable[..., Finding], reply: Reply, words: str) -> None:
    with SimulatedProvider(lambda request: reply) as provider:
        found = examined(provider.url)
        assert (found.ok, words in found.detail) == (True, True), found
        assert examined(provider.url).ok
        assert len(provider.ledger) == 1
        # What is asked for in addition was not seen working.
        assert examined(provider.url, tools={"builtin": ["calculator"]}).ok
        assert len(provider.ledger) == 2
    assert provider.requests[0]["max_tokens"] <= 64
    assert "tools" in provider.requests[1]


def test_a_busy_endpoint_fails_the_examination_and_no_run(
    shell: Shell, config: Callable[..., str], examined: Callable[..., Finding]
) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        return error(429, "slow down") if "ready" in request.raw.decode() else Reply(completion("4"))

    with SimulatedProvider(answer) as provider:
        assert "too busy" in examined(provider.url).detail
        assert shell("generate", config(provider.url))[0] == 0


def test_a_judge_with_a_typo_ends_the_run_before_the_teacher_is_paid(shell: Shell, config: Callable[..., str]) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        if request.body["model"] == "judgee":
            return error(404, "The model `judgee` does not exist", code="model_not_found")
        return Reply(completion("ready"))

    with SimulatedProvider(answer, models=["judge"]) as provider:
        model = {"model": "judgee", "base_url": provider.url, "usd_per_million_tokens": PRICE}
        rubric = [{"name": "clear", "question": "is it clear?"}]
        file = config(provider.url, dataset={"judge": {"enabled": True, "model": model, "rubric": rubric}})
        code, output = shell("generate", file)
    assert (code, "error[unknown-model]" in output, "Did you mean judge?" in output) == (1, True, True), output
    # Both were asked at once, and nothing else.
    assert sorted(body["model"] for body in provider.requests) == ["gpt-5.22", "judgee"]


def test_a_run_asks_first_and_counts_it_and_asks_nothing_where_all_is_in_the_journal(
    shell: Shell, config: Callable[..., str], tmp_path: Path
) -> None:
    with SimulatedProvider(lambda request: Reply(completion("4"))) as provider:
        file = config(provider.url)
        # Five prompts and the question.
        code, output = shell("generate", file, "--set", "budget.max_requests=5")
        assert (code, "error[budget]" in output) == (1, True), output
        assert "ready" in str(provider.requests[0])
        assert len(provider.ledger) == 5
        assert shell("generate", file, "--set", "budget.max_requests=6")[0] == 0
        assert len(provider.ledger) == 6
        (tmp_path / "runs" / "answered").rename(tmp_path / "gone")
        assert shell("generate", file, "--set", "runtime.refresh=[rollouts]")[0] == 0
        assert len(provider.ledger) == 6


def test_a_model_that_fails_is_asked_again(shell: Shell, config: Callable[..., str]) -> None:
    keys = [error(401, "Incorrect API key provided", code="invalid_api_key")]
    with SimulatedProvider(lambda request: keys[0] if keys and "ready" not in str(request.body) else READY) as provider:
        assert "error[authentication]" in shell("generate", config(provider.url))[1]
        keys.clear()
        num_before = len(provider.ledger)
        assert shell("generate", config(provider.url))[0] == 0
    assert "ready" in str(provider.requests[num_before])


def test_a_server_of_ones_own_is_not_asked_first(shell: Shell, config: Callable[..., str]) -> None:
    with SimulatedProvider(lambda request: Reply(completion("4"))) as provider:
        assert shell("generate", config(provider.url, teacher={"usd_per_million_tokens": {}}))[0] == 0
    assert len(provider.ledger) == 5


def test_a_model_that_refuses_every_prompt_alike_ends_the_run_after_three(
    shell: Shell, config: Callable[..., str]
) -> None:
    refusal = "Unsupported value: 'top_p' does not support 1 with this model."

    with SimulatedProvider(lambda request: error(400, refusal, code="unsupported_value")) as provider:
        file = config(provider.url, teacher={"usd_per_million_tokens": {}}, runtime={"max_concurrency": 1})
        code, output = shell("generate", file)
    assert (code, "error[refused-alike]" in output, "Change rollouts.top_p" in output) == (1, True, True), output
    assert len(provider.ledger) == 3


def test_an_odd_prompt_is_a_failed_rollout_and_no_more(shell: Shell, config: Callable[..., str]) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        return error(400, "cannot be processed") if "2 + 2" in request.raw.decode() else Reply(completion("4"))

    with SimulatedProvider(answer) as provider:
        free: dict[str, Any] = {"usd_per_million_tokens": {}}
        file = config(provider.url, teacher=free, rollouts={"num_samples": 4}, runtime={"failure_budget": 0.5})
        assert shell("generate", file)[0] == 0
        assert len(provider.ledger) == 20
        # Its four samples are asked again, whose refusals are of one prompt, at an endpoint that answered before.
        assert shell("generate", file, "--set", "runtime.refresh=[rollouts]")[0] == 0


@pytest.mark.parametrize("key", ["sk-ant-api03-0123456789", "https://api.openai.com/v1", "You are a helpful assistant"])
def test_what_is_no_key_of_the_seller_is_not_sent(
    examined: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    words = "in no API key" if " " in key else "was not sent"
    with SimulatedProvider() as provider:
        # The proxy would see whatever leaves.
        monkeypatch.setenv("http_proxy", provider.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("STILLHOUSE_TEST_KEY", key)
        found = examined("http://api.openai.com/v1")
    assert (words in found.detail, key in found.detail) == (True, False), found
    assert not provider.ledger
