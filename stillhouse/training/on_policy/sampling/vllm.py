"""Sampling by a vLLM server, which is given the student's weights after each update.

An adapter is saved to a folder and loaded under a name that carries its version, so that nothing cached under one name
is used for other weights. The weights of a full student are written to a folder that the server reloads. Completions
are seeded, but vLLM promises the same tokens only for the same batches: they do not repeat bit for bit.

A server that ends while it samples is waited for and given the weights again, as one that was started anew has those of
the base model.
"""

import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from stillhouse.chat.template import render
from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.score import score_tokens
from stillhouse.store import digest
from stillhouse.store.atomic import replaced_folder
from stillhouse.training.model.adapter_targets import labels
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.vllm_engine import VllmEngine
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import gathered

_QUESTIONS: Final = (
    "What is the capital of France?",
    "Write a sentence about the sea.",
    "How many days are there in a week?",
    "Name three animals.",
)
_NUM_PROBED: Final = 32
"""Tokens after each question."""
_MAX_MEAN_DIFFERENCE: Final = 0.15
"""Absolute, in nats per token. A vLLM server in bfloat16 on a CPU differed by 0.03 from transformers in float32 or
bfloat16 (SmolLM2-135M, 128 tokens); shifted by one token by 1.5 to 2.8."""
_ZERO: Final = 1e-3
_MAX_RESETS: Final = 30
_RESET_EVERY_S: Final = 1.0


logger = logging.getLogger(__name__)


class VllmEngines:
    """Engines over a student that a server samples.

    Weights are handed over in `folder`, under the same path on the server's machine; it is deleted at the end. A server
    that answered before is waited for `max_outage_s`, and `say` shows it; None when it is over. One that `sleeps` gives
    its device's memory back while it does not sample.

    Raises:
        ConfigError: vLLM does not support the student's adapter.
        EndpointError: the server cannot be reached.
    """

    def __init__(
        self,
        student: Student,
        config: OnPolicyConfig,
        folder: Path,
        *,
        max_outage_s: float = 0.0,
        say: Callable[[str | None], None] = lambda text: None,
        sleeps: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        assert config.engine_url is not None
        self._student = student
        self._config = config
        self._folder = folder.absolute()
        self._say = say
        self._sleeps = sleeps
        self._ranks = ranks or Ranks.single(student.device)
        self._prefix = f"stillhouse-{digest([str(self._folder)])[:8]}-v"
        self._is_adapter = student.model is not student.causal_lm
        if self._is_adapter:
            _require_loadable(student.model.peft_config["default"])
        self._server = VllmServer(config.engine_url, config.engine_api_key_env, max_outage_s=max_outage_s)
        served = self._server.models(is_first=True)
        base = next((model for model in served if not model.is_adapter), served[0])
        self.max_context = base.max_context
        """Most tokens of a sequence that the server holds; None where it does not say."""
        self._name = base.id
        self._version: int | None = None

    @contextmanager
    def engine(self, version: int) -> Iterator[VllmEngine]:
        """See `SamplingEngines`. The weights are the server's once the block begins."""
        is_first = self._version is None
        if self._sleeps:
            torch.cuda.empty_cache()
            self._server.post("/wake_up", None)
        if version != self._version:
            self._hand_over(version)
        engine = VllmEngine(
            self._server, self._name, self._config.max_concurrent, self._restore, lambda: self._has(version)
        )
        try:
            # A server that woke may lack what it was given: adapters above all.
            if is_first or self._sleeps:
                with gathered(self._student.step):
                    self._probe(engine)
            yield engine
            if self._sleeps:
                self._server.post("/sleep?level=1", None)
        finally:
            engine.close()

    def close(self) -> None:
        """See `SamplingEngines`; errors of the server are ignored, and nothing is retried."""
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
        """Give the server the current weights."""
        folder = self._folder / f"version-{version}"
        with replaced_folder(folder) as work:
            self._student.save(work, self._ranks)
        self._load(version)
        if self._version is not None:
            shutil.rmtree(self._folder / f"version-{self._version}", ignore_errors=True)
        self._version = version

    def _restore(self) -> None:
        """Wait for the server and give it the weights that it had, from their folder: the student's may be newer."""
        assert self._version is not None
        self._say(f"waiting for the vLLM server at {self._server.root}")
        self._server.models()
        self._load(self._version)
        self._say(None)

    def _load(self, version: int) -> None:
        folder = str(self._folder / f"version-{version}")
        if self._is_adapter:
            self._load_adapter(f"{self._prefix}{version}", folder)
            return
        self._server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        self._reset_cache()
        self._server.post("/update_weight_version", {"new_version": f"{self._prefix}{version}"})

    def _has(self, version: int) -> bool:
        """Return whether the server has the weights of a version; one without their adapter says so itself."""
        return self._is_adapter or self._server.weight_version() == f"{self._prefix}{version}"

    def _reset_cache(self) -> None:
        """Have the server forget the keys and values that the old weights computed; it refuses while it uses some."""
        for _ in range(_MAX_RESETS):
            answer = self._server.post("/reset_prefix_cache", None)
            if not (isinstance(answer, dict) and answer.get("success") is False):
                return
            time.sleep(_RESET_EVERY_S)
        raise EndpointError(
            f"the vLLM server at {self._server.root} does not reset its prefix cache ({answer!r}): it answers requests "
            "of somebody else, too. Sample from a server of its own"
        )

    def _load_adapter(self, name: str, folder: str) -> None:
        loaded = [model.id for model in self._server.models() if model.id.startswith(self._prefix)]
        if name in loaded:
            # Left by a killed process of this training, whose weights of the same version may have been others.
            self._server.post("/v1/unload_lora_adapter", {"lora_name": name})
        self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        for stale in set(loaded) - {name}:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": stale})
        self._name = name

    def _probe(self, engine: VllmEngine) -> None:
        """Raise EndpointError if the server's log-probabilities are of another distribution or model."""
        temperature = self._config.temperature
        if temperature != 1.0:
            self._probe_nucleus(engine)
        vocab_size = len(self._student.head.weight)
        differences: list[float] = []
        for question in _QUESTIONS:
            prompt = self._prompt(question)
            sampled = engine.complete(GenerationRequest(prompt, _NUM_PROBED, temperature, seed=1))
            if max(sampled.completion_ids) >= vocab_size:
                raise EndpointError(
                    f"the vLLM server at {self._server.root} sampled token {max(sampled.completion_ids)}, but the "
                    f"student has {vocab_size}. Start it with the student's base model, {self._student.base_ref!r}"
                )
            sequence = [*prompt, *sampled.completion_ids]
            with self._student.evaluating():
                [expected] = score_tokens(self._student.causal_lm, [sequence], temperature=temperature)
            differences += [abs(a - b) for a, b in zip(expected[len(prompt) :], sampled.logprobs, strict=True)]
        difference = math.fsum(differences) / len(differences)
        logger.info("the vLLM server's log-probabilities differ from the student's by %.3g a token", difference)
        if not difference < _MAX_MEAN_DIFFERENCE:
            raise EndpointError(
                f"the vLLM server at {self._server.root} samples as {self._name!r} with log-probabilities that differ "
                f"from the student's by {difference:.3g} a token over {len(differences)} tokens, expected less than "
                f"{_MAX_MEAN_DIFFERENCE} (rounding in bfloat16 makes some 0.03). Start it with the student's base "
                f"model, {self._student.base_ref!r}, in the same type of numbers"
            )

    def _probe_nucleus(self, engine: VllmEngine) -> None:
        """Sample from a nucleus of one token, whose log-probability is 0 in the distribution sampled from."""
        nucleus = GenerationRequest(self._prompt(_QUESTIONS[0]), 1, self._config.temperature, top_p=1e-6)
        [logprob] = engine.complete(nucleus).logprobs
        if abs(logprob) > _ZERO:
            raise EndpointError(
                f"the vLLM server at {self._server.root} gives a log-probability of {logprob:.3g} to a token that was "
                "the only one to sample, so it shows neither temperature nor top_p: start it with --logprobs-mode "
                "processed_logprobs, or set on_policy.temperature to 1"
            )

    def _prompt(self, question: str) -> list[int]:
        return render(
            self._student.tokenizer, [{"role": "user", "content": question}], None, add_generation_prompt=True
        )


def _require_loadable(settings: Any) -> None:
    if settings.target_parameters:
        loadable = labels(settings.target_modules)
        remedy = f"student.lora_targets to {loadable}, or " if loadable else ""
        raise ConfigError(
            f"on_policy.engine_url names a vLLM server, which loads no adapters on "
            f"{labels(settings.target_parameters)}; set {remedy}on_policy.engine_url to null"
        )
