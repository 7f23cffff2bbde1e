"""`VllmEngine`: completions of vLLM servers, token ids in and out."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Final

import numpy as np

from stillhouse.errors import EndpointError
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.training.on_policy.sampling.server_pool import ServerPool
from stillhouse.training.on_policy.sampling.vllm_server import ServerLost

_SHOWN_CHARACTERS: Final = 200
_MAX_LOSSES: Final = 5
_POLL_S: Final = 0.2
"""Longest step, after which more requests may come."""


class VllmEngine:
    """Completions by the servers of a pool, up to `max_concurrent` at once.

    An answer of a server that was lost meanwhile, or that was started anew between two requests, may be of other
    weights: it is dropped, and its request sent again, to another server if there is one.
    """

    def __init__(self, pool: ServerPool, max_concurrent: int) -> None:
        self._pool = pool
        self._threads = ThreadPoolExecutor(max_concurrent, thread_name_prefix="vllm")
        self._running: dict[Future[Generation], int] = {}
        self._num_submitted = 0

    def submit(self, request: GenerationRequest) -> int:
        handle = self._num_submitted
        self._num_submitted += 1
        self._running[self._threads.submit(self.complete, request)] = handle
        return handle

    def step(self) -> list[tuple[int, Generation]]:
        """See `SamplingEngine`; wait a moment for a completion to end, and raise EndpointError if one failed."""
        done, _ = wait(self._running, _POLL_S, return_when=FIRST_COMPLETED)
        return [(self._running.pop(future), future.result()) for future in done]

    def complete(self, request: GenerationRequest) -> Generation:
        """Return one completion; raise EndpointError if it failed or the answer lacks what training needs."""
        body, reason, root = body_of(request), "", ""
        for _ in range(_MAX_LOSSES):
            with self._pool.asked() as asked:
                root = asked.server.root
                try:
                    answer = asked.server.complete(asked.version, body)
                    is_lost, reason = not asked.server.has_weights(), "it was started anew between two requests"
                except ServerLost as lost:
                    is_lost, reason = True, str(lost)
            if is_lost:
                self._pool.lose(asked.server, asked.num_losses, reason)
            elif asked.server.num_losses == asked.num_losses:
                generation = read_generation(answer, request)
                versions = asked.server.versions(answer["choices"][0], asked.version, len(generation.completion_ids))
                return replace(generation, policy_versions=versions)
        raise EndpointError(
            f"the vLLM server at {root} was lost {_MAX_LOSSES} times during one completion: {reason}. See its log; out "
            "of memory: lower its --gpu-memory-utilization or --max-num-seqs"
        )

    def close(self) -> None:
        """Drop the requests not sent yet."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def body_of(request: GenerationRequest) -> dict[str, Any]:
    """Return the body that asks for a completion, but for the model."""
    # Everything that shapes the distribution: vLLM takes what is missing from the model's generation_config.json.
    return {
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
        "n": 1,
        "logprobs": request.num_best,
        "return_tokens_as_token_ids": request.num_best > 0,
        # The ids given here end a completion, and no others.
        "ignore_eos": True,
        "stop_token_ids": sorted(request.stop_ids),
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


def read_generation(answer: Any, request: GenerationRequest) -> Generation:
    """Return the completion in an answer.

    Raises EndpointError if it lacks tokens or their log-probabilities, or is about another prompt.
    """
    try:
        [choice] = answer["choices"]
        reason = choice["finish_reason"]
        ids, read_ids = choice.get("token_ids"), choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        best_NK = _best_ids(choice["logprobs"]["top_logprobs"], request.num_best) if request.num_best else None
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise EndpointError(
            f"the vLLM server answers with what is no completion: {str(answer)[:_SHOWN_CHARACTERS]!r}; expected one of "
            "its `choices`. Check on_policy.engine_url"
        ) from error
    if ids is None or logprobs is None:
        lacking = "token_ids" if ids is None else "logprobs"
        raise EndpointError(f"the vLLM server answers without {lacking}; expected a version from 0.10.2 on")
    if read_ids is not None and list(read_ids) != list(request.prompt_ids):
        raise EndpointError(
            f"the vLLM server read {len(read_ids)} tokens as the prompt, which are not the {len(request.prompt_ids)} "
            "that were sent; a middleman that writes prompts anew cannot be sampled through"
        )
    are_numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in logprobs)
    if not ids or len(logprobs) != len(ids) or not are_numbers:
        raise EndpointError(
            f"the vLLM server gave {len(logprobs)} log-probabilities, some of them perhaps no numbers, for {len(ids)} "
            "tokens; expected a token or more, and a number for each"
        )
    return Generation(list(ids), list(logprobs), "stop" if reason == "stop" else "length", best_NK)


def _best_ids(entries: Sequence[Mapping[str, float]], num_best: int) -> np.ndarray:
    """Return the most probable tokens at each place, of which an entry holds one more where another was sampled."""
    best = [sorted(entry, key=entry.__getitem__, reverse=True)[:num_best] for entry in entries]
    return np.array([[int(name.removeprefix("token_id:")) for name in names] for names in best], np.int32)
