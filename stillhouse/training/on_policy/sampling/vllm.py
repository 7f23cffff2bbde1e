"""Sampling by vLLM servers, which are given the student's weights after each update.

The weights are saved to a folder that all servers read. Completions are seeded, but vLLM promises the same tokens only
for the same batches: they do not repeat bit for bit.
"""

import logging
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from stillhouse.chat.template import render
from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.inference.vllm.launch import refusal
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.score import score_tokens
from stillhouse.store.atomic import replaced_folder
from stillhouse.training.model.adapter_targets import labels
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.sampling_server import SamplingServer
from stillhouse.training.on_policy.sampling.server_pool import ServerPool
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

logger = logging.getLogger(__name__)


class VllmEngines:
    """Engines over a student that servers sample.

    Weights are handed over in `folder`, under the same path on the servers' machines; it is deleted at the end. A
    server that answered before is waited for `max_outage_s`, and `say` shows it; None when it is over. Servers that
    `sleeps` have give their devices' memory back while they do not sample.

    Raises:
        ConfigError: vLLM does not support the student's adapter.
        EndpointError: a server cannot be reached.
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
        self._sleeps = sleeps
        self._ranks = ranks or Ranks.single(student.device)
        is_adapter = student.model is not student.causal_lm
        if is_adapter:
            settings = student.model.peft_config["default"]
            if reason := refusal(settings.to_dict()):
                loadable = labels(settings.target_modules) or "linear layers"
                raise ConfigError(
                    f"on_policy.engine_url names a server of vLLM, but {reason} "
                    f"{labels(settings.target_parameters or ())}; set student.lora_targets to {loadable}, or "
                    "on_policy.engine_url to null"
                )
        servers = [
            SamplingServer(
                VllmServer(url, config.engine_api_key_env, max_outage_s=max_outage_s),
                self._folder,
                is_adapter=is_adapter,
            )
            for url in config.engine_url
        ]
        self._pool = ServerPool(servers, say)
        lengths = [server.max_context for server in servers if server.max_context is not None]
        self.max_context = min(lengths, default=None)
        """Most tokens of a sequence that all servers hold; None where none says."""

    @contextmanager
    def engine(self, version: int) -> Iterator[VllmEngine]:
        """See `SamplingEngines`. The weights are the servers' once the block begins."""
        is_first = self._pool.version is None
        if self._sleeps:
            torch.cuda.empty_cache()
            for server in self._pool.servers:
                server.wake()
        self.hand_over(version)
        # A server that woke may lack what it was given: adapters above all.
        if is_first or self._sleeps:
            with gathered(self._student.step):
                for server in self._pool.servers:
                    self._probe(server)
        engine = VllmEngine(self._pool, self._config.max_concurrent)
        try:
            yield engine
            if self._sleeps:
                for server in self._pool.servers:
                    server.sleep()
        finally:
            engine.close()

    def close(self) -> None:
        """See `SamplingEngines`; errors of the servers are ignored, and nothing is retried."""
        self._pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def hand_over(self, version: int) -> None:
        """Give the servers the current weights, unless they have those of `version` updates."""
        if version == self._pool.version:
            return
        with replaced_folder(self._folder / f"version-{version}") as work:
            self._student.save(work, self._ranks)
        self._pool.give(version)
        needed = {version}.union(*(server.needed for server in self._pool.servers))
        for folder in self._folder.glob("version-*"):
            if folder.name not in {f"version-{one}" for one in needed}:
                shutil.rmtree(folder, ignore_errors=True)

    def _probe(self, server: SamplingServer) -> None:
        """Raise EndpointError if a server's log-probabilities are of another distribution or model."""
        temperature, root = self._config.temperature, server.root
        # Only threads would have to be closed, and it makes none for completions that are waited for.
        engine = VllmEngine(ServerPool([server], version=self._pool.version), 1)
        if temperature != 1.0:
            self._probe_nucleus(engine, root)
        vocab_size = len(self._student.head.weight)
        differences: list[float] = []
        for question in _QUESTIONS:
            prompt = self._prompt(question)
            sampled = engine.complete(GenerationRequest(prompt, _NUM_PROBED, temperature, seed=1))
            if max(sampled.completion_ids) >= vocab_size:
                raise EndpointError(
                    f"the vLLM server at {root} sampled token {max(sampled.completion_ids)}, but the "
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
                f"the vLLM server at {root} samples with log-probabilities that differ "
                f"from the student's by {difference:.3g} a token over {len(differences)} tokens, expected less than "
                f"{_MAX_MEAN_DIFFERENCE} (rounding in bfloat16 makes some 0.03). Start it with the student's base "
                f"model, {self._student.base_ref!r}, in the same type of numbers"
            )

    def _probe_nucleus(self, engine: VllmEngine, root: str) -> None:
        """Sample from a nucleus of one token, whose log-probability is 0 in the distribution sampled from."""
        nucleus = GenerationRequest(self._prompt(_QUESTIONS[0]), 1, self._config.temperature, top_p=1e-6)
        [logprob] = engine.complete(nucleus).logprobs
        if abs(logprob) > _ZERO:
            raise EndpointError(
                f"the vLLM server at {root} gives a log-probability of {logprob:.3g} to a token that was "
                "the only one to sample, so it shows neither temperature nor top_p: start it with --logprobs-mode "
                "processed_logprobs, or set on_policy.temperature to 1"
            )

    def _prompt(self, question: str) -> list[int]:
        return render(
            self._student.tokenizer, [{"role": "user", "content": question}], None, add_generation_prompt=True
        )
