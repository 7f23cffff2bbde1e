"""Several samples of one long prompt: the first goes ahead, the others read the prompt from the seller's cache."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_messages import FakeMessages
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

Shell = Callable[..., tuple[int, str]]
Item = dict[str, Any]
DELAY_S = 0.3
NUM_SAMPLES = 4


class Caching(FakeMessages):
    """A seller that reads a marked prompt from its cache once a request with it was answered, and else writes it."""

    def __init__(self) -> None:
        super().__init__(lambda turns: "an answer")
        self.refused = ()
        self._answered_at: dict[str, float] = {}
        self._seen = threading.Lock()

    def __call__(self, request: ReceivedRequest) -> Reply:
        reply = super().__call__(request)
        assert isinstance(reply.body, dict)
        assert reply.status == 200
        prefix, now = json.dumps(request.body["messages"]), time.monotonic()
        with self._seen:
            is_read = self._answered_at.setdefault(prefix, now + DELAY_S) <= now
        kind = "cache_read_input_tokens" if is_read else "cache_creation_input_tokens"
        kind = kind if "cache_control" in request.body else "input_tokens"
        usage = {"input_tokens": 0, "output_tokens": 5, kind: 1000}
        return Reply({**reply.body, "usage": usage}, headers=reply.headers, delay_s=DELAY_S)


def generate(shell: Shell, folder: Path, script: Any, prompts: list[str], *settings: str) -> tuple[Counter[str], int]:
    """Return how many turns had which tokens in their usage, and the most requests that were under way at once."""
    (folder / "prompts.txt").write_text("\n\n".join(prompts))
    always = ("tracking.enabled=false", f"rollouts.num_samples={NUM_SAMPLES}", "runtime.concurrency=32")
    given = [word for setting in (*always, *settings) for word in ("--set", setting)]
    with SimulatedProvider(script) as provider:
        names = ("-m", "m", "--base-url", provider.url, "--api-key-env", "CACHE_KEY")
        code, output = shell("generate", "prompts.txt", "-o", "out.jsonl", *names, *given)
    assert code == 0, output
    [file] = folder.glob("runs/artifacts/rollouts/*/trajectories.jsonl")
    turns = [turn for line in file.read_bytes().splitlines() for turn in json.loads(line)["turns"]]
    assert len(turns) == len(prompts) * NUM_SAMPLES
    return Counter(key for turn in turns for key in turn["usage"] if turn["usage"][key]), provider.peak_in_flight


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_KEY", "any-key-of-some-length")


def test_all_samples_but_the_first_read_a_long_prompt_from_the_cache(shell: Shell, tmp_path: Path) -> None:
    prompts = [f"{number} " + "long " * 1000 for number in range(3)]
    found, peak = generate(shell, tmp_path, Caching(), prompts, "teacher.api=messages")
    assert (found["cache_write_tokens"], found["cached_tokens"]) == (3, 3 * (NUM_SAMPLES - 1))
    assert peak > NUM_SAMPLES


@pytest.mark.parametrize(
    ("prompt", "script", "settings"),
    [
        ("short", Caching(), ["teacher.api=messages"]),
        ("long " * 1000, lambda request: Reply(completion("an answer"), delay_s=DELAY_S), []),
    ],
    ids=["a short prompt", "a seller without a cache"],
)
def test_nothing_waits_where_nothing_is_cached(
    shell: Shell, tmp_path: Path, prompt: str, script: Any, settings: list[str]
) -> None:
    found, peak = generate(shell, tmp_path, script, [prompt], *settings)
    assert peak == NUM_SAMPLES
    assert not found["cached_tokens"] + found["cache_write_tokens"]
