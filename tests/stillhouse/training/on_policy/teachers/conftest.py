"""Servers that score: fakes that answer as vLLM, SGLang and others do, with all their oddities, and our own."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stillhouse.config import RuntimeConfig
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.types import Sample
from tests.stillhouse.training.sections import on_policy_of

MODEL = "big"
Body = dict[str, Any]


class Refusal(Exception):
    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class ScoringServer:
    """A teacher's server on loopback. `/v1/completions` answers as vLLM's, with `echo` too, `/generate` as SGLang's."""

    refusal = Refusal

    def __init__(self, spell: Callable[[int], str]) -> None:
        self.spell = spell
        self.url = ""
        self.asked: list[list[int]] = []
        """Every sequence that was scored, in order."""
        self.bodies: list[Body] = []
        self.failures: list[Refusal] = []
        """What the next requests are answered with."""
        self.spoil: Callable[[Any], Any] = lambda answer: answer
        """What becomes of each answer on its way."""
        self.oom_tokens = 10**9
        self.max_model_len = 1000
        self.max_logprobs = 20
        self.num_alternatives = 0
        self.tempers = False
        self.takes_token_ids = True
        self.delay_s = 0.0
        self.models: bytes | None = None
        """What `/v1/models` answers in place of the truth."""
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._chance = random.Random(0)

    def truth(self, ids: Sequence[int], place: int, temperature: float = 1.0) -> float:
        """The log-probability of the token at `place`, as a server computes it in float32."""
        seen = sum((position + 1) * token for position, token in enumerate(ids[: place + 1]))
        return float(np.float32(-(1 + seen * 7919 % 997) / 100 / (temperature if self.tempers else 1.0)))

    def best(self, ids: Sequence[int], place: int, count: int) -> list[tuple[int, float]]:
        """The most probable tokens at `place` and their log-probabilities, of which the token there may be one."""
        others = [(ids[place] + 1000 * rank, -0.7 * rank) for rank in range(1, count + 1)]
        return sorted([(ids[place], self.truth(ids, place)), *others], key=lambda pair: -pair[1])[:count]

    def answer(self, path: str, body: Body) -> Any:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            time.sleep(self.delay_s)
            with self._lock:
                if self.failures:
                    raise self.failures.pop(0)
                self.bodies.append(body)
                answer = self._generate(body) if path == "/generate" else self._completions(path, body)
                return self.spoil(answer)
        finally:
            with self._lock:
                self._at_once -= 1

    def _completions(self, path: str, body: Body) -> Body:
        assert path == "/v1/completions"
        if body["model"] != MODEL:
            raise Refusal(404, f"The model `{body['model']}` does not exist.")
        for key in ("prompt_logprobs", "logprobs"):
            if body.get(key, 0) > self.max_logprobs:
                raise Refusal(400, f"Requested {key} of {body[key]}, which is greater than max: {self.max_logprobs}")
        if body.get("return_tokens_as_token_ids") and not self.takes_token_ids:
            raise Refusal(400, "Unrecognized request argument supplied: return_tokens_as_token_ids")
        self._take(body["prompt"], body["max_tokens"])
        form = self._echoed if body.get("echo") else self._prompt_logprobs
        choices = [{"index": index, "text": "x", **form(ids, body)} for index, ids in enumerate(body["prompt"])]
        self._chance.shuffle(choices)
        return {"object": "text_completion", "choices": choices}

    def _take(self, prompts: list[list[int]], num_new: int) -> None:
        for ids in prompts:
            if len(ids) + num_new > self.max_model_len:
                raise Refusal(
                    400, f"This model's maximum context length is {self.max_model_len} tokens; you asked for {len(ids)}"
                )
        if sum(map(len, prompts)) > self.oom_tokens:
            raise Refusal(500, "CUDA out of memory. Tried to allocate 7.50 GiB")
        self.asked += prompts

    def _prompt_logprobs(self, ids: list[int], body: Body) -> Body:
        entries: list[Body | None] = [None]
        for place in range(1, len(ids)):
            logprob = self.truth(ids, place, body["temperature"])
            alternatives = {str(ids[place]): {"logprob": logprob, "rank": 4, "decoded_token": self.spell(ids[place])}}
            best = self.best(ids, place, body["prompt_logprobs"] or self.num_alternatives)
            for rank, (token, logprob) in enumerate((pair for pair in best if pair[0] != ids[place]), start=1):
                alternatives[str(token)] = {"logprob": logprob, "rank": rank, "decoded_token": "?"}
            pairs = list(alternatives.items())
            self._chance.shuffle(pairs)
            entries.append(dict(pairs))
        return {"prompt_logprobs": entries}

    def _echoed(self, ids: list[int], body: Body) -> Body:
        as_ids = body.get("return_tokens_as_token_ids")
        names = [f"token_id:{token}" if as_ids else self.spell(token) for token in [*ids, 7]]
        logprobs = [None, *(self.truth(ids, place, body["temperature"]) for place in range(1, len(ids))), -0.5]
        return {"logprobs": {"tokens": names, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": []}}

    def _generate(self, body: Body) -> Any:
        self._take(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        results = []
        for ids, start in zip(body["input_ids"], body["logprob_start_len"], strict=True):
            triples = [
                [
                    None if place == start else self.truth(ids, place, body["sampling_params"]["temperature"]),
                    ids[place],
                    self.spell(ids[place]) if body["return_text_in_logprobs"] else None,
                ]
                for place in range(start, len(ids))
            ]
            meta = {"prompt_tokens": len(ids), "input_token_logprobs": triples}
            if count := body.get("top_logprobs_num"):
                tops = [
                    [[value, token, None] for token, value in self.best(ids, place, count)]
                    for place in range(start, len(ids))
                ]
                meta["input_top_logprobs"] = [None, *tops[1:]]
            results.append({"text": "", "meta_info": meta})
        return results


def _handler(server: ScoringServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            entry = {"id": MODEL, "object": "model", "max_model_len": server.max_model_len}
            body = {"object": "list", "data": [entry]}
            self._send(200, body if server.models is None else server.models, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                self._send(200, server.answer(self.path, body), {})
            except Refusal as refusal:
                self._send(refusal.status, {"object": "error", "message": str(refusal)}, refusal.headers)

        def _send(self, status: int, body: Any, headers: dict[str, str]) -> None:
            # NaN and -Infinity as Python's servers write them.
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def scoring_server(tokenizer: PreTrainedTokenizerBase) -> Iterator[ScoringServer]:
    server = ScoringServer(lambda token: tokenizer.decode([token]))
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(server)) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        http.shutdown()
        thread.join()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., TeacherRouter]]:
    """Loads the teachers of a student by the settings of `on_policy`; they are closed after the test."""
    with ExitStack() as resources:

        def make(
            student: Student, *, ref: str | None = None, averaged: Any = nullcontext, **on_policy: Any
        ) -> TeacherRouter:
            config, runtime = on_policy_of(on_policy), RuntimeConfig(store=str(tmp_path))
            teachers = load_teachers(config, student, default_ref=ref, averaged=averaged, runtime=runtime)
            resources.callback(teachers.close)
            return teachers

        yield make


@pytest.fixture(scope="session")
def requests() -> list[Sample]:
    """Sequences of different lengths, of which some tokens were sampled, in one run or in two."""
    chance = random.Random(1)
    made = []
    for number, length in enumerate((3, 40, 12, 25, 7, 33)):
        ids = [chance.randrange(3, 600) for _ in range(length)]
        first = 1 if number == 0 else length // 3
        mask = [first <= place != first + 2 for place in range(length)]
        made.append(Sample(ids, mask, f"p{number}"))
    return made


@pytest.fixture(scope="module")
def own_server(serve: Callable[[str, str], str]) -> str:
    """Base URL of our own server of the embedded teacher."""
    return serve("embedded:teacher", MODEL)


@pytest.fixture(scope="session")
def other() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer of another text, with the chat template of the embedded models and another end of turn."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<pad>", "<|begin|>", "<|stop|>"],
        show_progress=False,
    )
    backend.train_from_iterator(["Ben has eggs and finds more of them, 东京 café, done and done again. " * 20], trainer)
    template = (
        "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}[call {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
        "<|stop|>{% endfor %}{% if add_generation_prompt %}<|begin|>assistant: {% endif %}"
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|stop|>", pad_token="<pad>", chat_template=template
    )
