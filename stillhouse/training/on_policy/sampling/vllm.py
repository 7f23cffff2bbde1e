"""Sampling by a vLLM server, token ids in and out, which is given the student's weights after each update.

An adapter is saved to a folder and loaded under a name that carries its version: what the server has cached under one
name is never used for other weights. The weights of a full student are written to a folder that the server reloads.
Completions are seeded, but vLLM promises the same tokens only for the same batches: they are not repeated bit for bit.
"""

import math
import shutil
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.score import score_tokens
from stillhouse.store import digest
from stillhouse.store.atomic import replaced_folder
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.completions import completion_body, read_completion
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer
from stillhouse.training.ranks import Ranks

_COMPLETIONS: Final = "/v1/completions"
_PROBE: Final = (1, 2, 3, 4)
"""Tokens of any vocabulary, which no model is sure how to continue."""
_NUM_PROBED: Final = 16
_MAX_MEAN_DIFFERENCE: Final = 0.1
"""In nats a token: kernels in bfloat16 differ by a hundredth, another model by far more."""
_ZERO: Final = 1e-3


class VllmEngine:
    """Completions by one model name of a server, up to `max_concurrent` at once."""

    def __init__(self, server: VllmServer, model: str, max_concurrent: int) -> None:
        self._server = server
        self._model = model
        self._threads = ThreadPoolExecutor(max_concurrent, thread_name_prefix="vllm")
        self._running: dict[Future[Generation], int] = {}
        self._num_submitted = 0

    def submit(self, request: GenerationRequest) -> int:
        """See `Engine`."""
        handle = self._num_submitted
        self._num_submitted += 1
        self._running[self._threads.submit(self.complete, request)] = handle
        return handle

    def step(self) -> list[tuple[int, Generation]]:
        """See `Engine`; waits until a completion has ended.

        Raises:
            EndpointError: one cannot be had.
        """
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        return [(self._running.pop(future), future.result()) for future in done]

    def complete(self, request: GenerationRequest) -> Generation:
        """One completion.

        Raises:
            EndpointError: it cannot be had, or the answer lacks what training needs.
        """
        answer = self._server.post(_COMPLETIONS, completion_body(self._model, request))
        return read_completion(answer, request)

    def close(self) -> None:
        """Drops what has not been sent."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class VllmEngines:
    """Engines over a student that a server samples.

    Args:
        student: whose weights it is given.
        config: the server's address, and how it samples.
        folder: where weights are handed over, which the server sees under the same path; emptied at the end.

    Raises:
        ConfigError: vLLM cannot have the student's adapter.
        EndpointError: the server cannot be reached.
    """

    def __init__(self, student: Student, config: OnPolicyConfig, folder: Path) -> None:
        assert config.engine_url is not None
        self._student = student
        self._config = config
        self._folder = folder.absolute()
        self._prefix = f"stillhouse-{digest([str(self._folder)])[:8]}-v"
        self._is_adapter = student.model is not student.causal_lm
        if self._is_adapter and student.model.peft_config["default"].use_dora:
            raise ConfigError(
                "on_policy.engine is `vllm`, which has no DoRA adapters; set student.lora_variant to `lora` or `rslora`"
            )
        self._server = VllmServer(config.engine_url, config.engine_api_key_env)
        served = self._server.models()
        base = next((model for model in served if not model.is_adapter), served[0])
        self.max_context = base.max_context
        """Most tokens of a sequence that the server holds; None where it does not say."""
        self._name = base.id
        self._version: int | None = None

    @contextmanager
    def engine(self, version: int) -> Iterator[VllmEngine]:
        """See `Engines`. The weights are the server's once the block begins."""
        is_first = self._version is None
        if version != self._version:
            self._hand_over(version)
        engine = VllmEngine(self._server, self._name, self._config.max_concurrent)
        try:
            if is_first:
                self._probe(engine)
            yield engine
        finally:
            engine.close()

    def close(self) -> None:
        """See `Engines`; a server that has gone away is left alone, and nothing is tried a second time."""
        self._server.stop()
        try:
            if self._is_adapter and self._version is not None:
                self._server.post("/v1/unload_lora_adapter", {"lora_name": self._name})
        except EndpointError:
            pass
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._server.close()

    def _hand_over(self, version: int) -> None:
        """Gives the server the weights as they are now."""
        folder = self._folder / f"version-{version}"
        with replaced_folder(folder) as work:
            self._student.save(work, Ranks.single(self._student.device))
        if self._is_adapter:
            self._load_adapter(f"{self._prefix}{version}", folder)
        else:
            call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            self._server.post("/collective_rpc", call)
            # Keys and values of prompts that the old weights computed.
            self._server.post("/reset_prefix_cache", None)
        if self._version is not None:
            shutil.rmtree(self._folder / f"version-{self._version}", ignore_errors=True)
        self._version = version

    def _load_adapter(self, name: str, folder: Path) -> None:
        if self._version is None:
            # An earlier process of this training may have been killed, and have gone another way from here.
            for left in [model.id for model in self._server.models() if model.id.startswith(self._prefix)]:
                self._server.post("/v1/unload_lora_adapter", {"lora_name": left})
        self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        if self._version is not None:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": self._name})
        self._name = name

    def _probe(self, engine: VllmEngine) -> None:
        """Holds the server's log-probabilities to the student's own.

        Raises:
            EndpointError: they are of another distribution, or of another model.
        """
        temperature = self._config.temperature
        if temperature != 1.0 or self._config.top_p < 1.0:
            self._probe_nucleus(engine)
        sampled = engine.complete(GenerationRequest(_PROBE, _NUM_PROBED, temperature, seed=1))
        num_known = len(self._student.head.weight)
        if max(sampled.completion_ids) >= num_known:
            raise EndpointError(
                f"the vLLM server at {self._server.root} sampled token {max(sampled.completion_ids)}, but the student "
                f"has {num_known}. Start it with the student's base model, {self._student.base_ref!r}"
            )
        own = self._own_logprobs([*_PROBE, *sampled.completion_ids], temperature)[len(_PROBE) :]
        difference = math.fsum(abs(a - b) for a, b in zip(own, sampled.logprobs, strict=True)) / len(own)
        if not difference < _MAX_MEAN_DIFFERENCE:
            raise EndpointError(
                f"the vLLM server at {self._server.root} samples as {self._name!r} with log-probabilities that differ "
                f"from the student's by {difference:.3g} a token, expected less than {_MAX_MEAN_DIFFERENCE}. Start it "
                f"with the student's base model, {self._student.base_ref!r}, in the same type of numbers"
            )

    def _probe_nucleus(self, engine: VllmEngine) -> None:
        """Samples from a nucleus of one token, whose log-probability is 0 where it is that of what was sampled from."""
        [logprob] = engine.complete(GenerationRequest(_PROBE, 1, self._config.temperature, top_p=1e-6)).logprobs
        if abs(logprob) > _ZERO:
            raise EndpointError(
                f"the vLLM server at {self._server.root} gives a log-probability of {logprob:.3g} to a token that was "
                "the only one to sample, so it shows neither temperature nor top_p: start it with --logprobs-mode "
                "processed_logprobs, or set on_policy.temperature and top_p to 1"
            )

    def _own_logprobs(self, token_ids: list[int], temperature: float) -> list[float]:
        model = self._student.model
        was_training = model.training
        model.eval()
        with self._student.precision():
            scores = score_tokens(self._student.causal_lm, [token_ids], temperature=temperature)
        model.train(was_training)
        return scores[0]
