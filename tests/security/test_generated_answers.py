"""Answers, headers and pages that nobody would think of: they end no run and let no key pass."""

import asyncio
import json
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillhouse.config import RolloutsConfig, RuntimeConfig, ToolsConfig
from stillhouse.errors import StillhouseError
from stillhouse.inference import Controller, Endpoint, Journal
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.rate_limit import Caps, RateControl
from stillhouse.inference.retry import Effects
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.store import exact_json, prompt_id
from stillhouse.tools import Toolbox
from stillhouse.tools.calculator import calculator
from stillhouse.tools.context import ToolError
from stillhouse.tools.network.browse import Browse
from stillhouse.types import Message, Prompt

FEW = settings(max_examples=10, suppress_health_check=list(HealthCheck), derandomize=True)
MANY = settings(FEW, max_examples=300)
FEW_OR_MANY = pytest.mark.parametrize(
    "examples", [pytest.param(FEW, id="some"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
NAMES = (
    *("content-type", "content-encoding", "location", "x-request-id", "retry-after", "retry-after-ms", "set-cookie"),
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-tokens", "x-ratelimit-reset", "content-disposition"),
)


def _bodies(canary: Any) -> st.SearchStrategy[bytes]:
    """Return what looks like a completion with anything in it, a page, or nothing; the key stands in some."""
    key = st.sampled_from([canary.key, *canary.spellings.values()])
    text = st.one_of(st.text(max_size=30), key, st.tuples(st.text(max_size=9), key, st.text(max_size=9)).map("".join))
    leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text)
    value = st.recursive(
        leaf,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
        max_leaves=6,
    )
    call = st.fixed_dictionaries({"id": value, "type": value, "function": st.one_of(value, st.just({"name": "f"}))})
    message = st.fixed_dictionaries(
        {}, optional={"role": value, "content": st.one_of(text, value), "tool_calls": st.one_of(value, st.lists(call))}
    )
    choice = st.fixed_dictionaries(
        {"message": st.one_of(message, value)},
        optional={"finish_reason": value, "logprobs": value, "token_ids": value, "error": value},
    )
    answer = st.fixed_dictionaries(
        {"choices": st.one_of(st.lists(st.one_of(choice, value), max_size=2), value)},
        optional={"usage": st.one_of(value, st.dictionaries(st.just("prompt_tokens"), value)), "model": value,
                  "error": value, "id": value, "provider": value, "prompt_token_ids": value, "data": value},
    )  # fmt: skip
    page = st.lists(st.one_of(text, st.sampled_from(["<p>", "<script>", "<!--", "<meta charset=", "\0", "<![CDATA["])))
    return st.one_of(
        answer.map(lambda one: json.dumps(one).encode()),
        value.map(lambda one: json.dumps(one, ensure_ascii=False).encode("utf-8", "surrogatepass")),
        page.map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass")),
        text.map(lambda one: one.encode("utf-16", "surrogatepass")),
        st.binary(max_size=60),
    )


@st.composite
def _answers(draw: st.DrawFn, canary: Any) -> tuple[int, dict[str, str], bytes]:
    text = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30)
    value = st.one_of(
        text,
        st.sampled_from([canary.key, *canary.spellings.values(), "gzip", "gzip, br", "text/html; charset=x", "nan"]),
        st.integers().map(str),
    )
    # A provider that asks for ever to be asked later is asked for ever.
    status = draw(st.one_of(st.just(200), st.integers(200, 599).filter(lambda one: one not in (429, 498, 529))))
    return status, draw(st.dictionaries(st.sampled_from(NAMES), value, max_size=4)), draw(_bodies(canary))


async def _nap(_seconds: float) -> None:
    await asyncio.sleep(0)


async def _run(url: str, key: str, journal: Journal) -> str:
    """Return what is kept of the rollout of one prompt; an error that ends the run must be one of its own."""
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    collector = RolloutCollector(
        EverySample([Prompt(prompt_id(messages, None), messages, None)], 1),
        endpoint=Endpoint(url, "m", "m", key),
        config=RolloutsConfig(record_tokens=True, max_turns=2),
        toolbox=Toolbox([calculator]),
        journal=journal,
        runtime=RuntimeConfig(max_attempts=2, concurrency=2),
        controller=Controller(RateControl(2, Caps(2))),
        effects=Effects(sleep=_nap),
    )
    try:
        async with asyncio.timeout(20), aclosing(collector):
            return exact_json.dumps([trajectory async for trajectory in collector]).decode()
    except StillhouseError as error:
        return str(error)


def _scored(url: str, key: str) -> str:
    with closing(ModelServer(url, key, 10)) as server:
        try:
            return repr(server.models())
        except RequestFailed as error:
            return repr(error.failure)


def _answer_ends_no_run(stranger: Any, canary: Any, folder: Path, answer: tuple[int, dict[str, str], bytes]) -> None:
    stranger.status, stranger.headers, stranger.body = answer
    file = folder / "journal.sqlite3"
    file.unlink(missing_ok=True)
    with Journal(file) as journal:
        told = asyncio.run(_run(stranger.url("/v1"), canary.key, journal))
    assert not canary.in_text(told + _scored(stranger.url("/v1"), canary.key))
    assert not canary.in_text(file.read_bytes())


def _page_is_read_or_refused(browse: Browse, stranger: Any, answer: tuple[int, dict[str, str], bytes]) -> None:
    stranger.status, stranger.headers, stranger.body = answer
    # Anything else that it raises fails the test.
    with suppress(ToolError):
        assert isinstance(asyncio.run(browse.tool.function(stranger.url("/v1"))), str)


@FEW_OR_MANY
def test_no_answer_crashes_a_run_or_brings_a_key_along(stranger, canary, examples, tmp_path: Path) -> None:
    examples(given(_answers(canary))(lambda answer: _answer_ends_no_run(stranger, canary, tmp_path, answer)))()


@FEW_OR_MANY
def test_no_page_crashes_its_reader(stranger, canary, examples) -> None:
    browse = Browse(ToolsConfig(browse_with="http", allowed_hosts=("127.0.0.1",)))
    try:
        examples(given(_answers(canary))(lambda answer: _page_is_read_or_refused(browse, stranger, answer)))()
    finally:
        asyncio.run(browse.close())
