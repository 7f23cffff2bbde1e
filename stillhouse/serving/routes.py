"""HTTP routes: validate a request, sample, score, answer.

Log-probabilities of sampled tokens are those of the distribution sampled from, softmax(logits / temperature), before
`top_p` cuts it; those of a prompt's tokens are untempered.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import render
from stillhouse.serving.admission import AdmissionController
from stillhouse.serving.answers import RankedPrompt, chat_choice, envelope, text_choice
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.models import AdaptedModel
from stillhouse.serving.protocol import (
    ApiError,
    ChatRequest,
    CollectiveCall,
    CompletionRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    invalid_value,
)
from stillhouse.serving.score import RankedToken
from stillhouse.serving.worker import ModelWorker
from stillhouse.store.fingerprint import digest
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NOTHING: Final = Generation([], [], "length")
_SEED_BITS: Final = 63


@dataclass(frozen=True)
class ServedModel:
    """The model behind the routes."""

    name: str
    tokenizer: "PreTrainedTokenizerBase"
    stop_ids: frozenset[int]
    vocab_size: int
    context_length: int


class Routes:
    """The routes of one served model."""

    def __init__(self, model: ServedModel, admission: AdmissionController) -> None:
        self._model = model
        self._admission = admission

    async def health(self) -> Response:
        """Answers while the server runs."""
        return _json({"status": "ok"})

    async def models(self) -> Response:
        """The one model, and the adapters loaded beside it."""
        entry = {
            "id": self._model.name,
            "object": "model",
            "created": 0,
            "owned_by": "stillhouse",
            "max_model_len": self._model.context_length,
        }
        adapters = [
            {**entry, "id": name, "root": folder, "parent": self._model.name}
            for name, folder in self._admission.worker.adapters.items()
        ]
        return _json({"object": "list", "data": [entry, *adapters]})

    async def stats(self) -> Response:
        """Counters since the start."""
        return _json(self._admission.stats())

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        adapter = self._adapter(body.model)
        try:
            prompt_ids = render(
                self._model.tokenizer, body.conversation(), body.offered_tools(), add_generation_prompt=True
            )
        except TemplateError as error:
            raise invalid_value(str(error), "messages") from error
        max_tokens = body.max_completion_tokens or body.max_tokens or self._model.context_length
        self._check_room(prompt_ids, num_new=1)
        prompts = [prompt_ids] * body.n
        async with self._admission.admitted(body.n):
            generations = await self._sample(request, prompts, max_tokens, body, adapter)
            num_top = body.top_logprobs if body.logprobs else 0
            ranked = await self._rank(request, prompts, generations, num_top, body.temperature, adapter)
        choices = [
            chat_choice(index, body, *answer, self._model.tokenizer)
            for index, answer in enumerate(zip(generations, ranked, strict=True))
        ]
        answer = envelope("chat.completion", body.model, choices, self._admission.count_answer(generations, prompt_ids))
        if body.return_token_ids:
            answer["prompt_token_ids"] = prompt_ids
        return _json(answer)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        adapter = self._adapter(body.model)
        if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
            raise invalid_value("max_tokens is 0; expected at least 1, or echo or prompt_logprobs", "max_tokens")
        given = body.prompts()
        ids_of_prompts = [self._prompt_ids(prompt) for prompt in given]
        for ids in ids_of_prompts:
            self._check_room(ids, num_new=min(body.max_tokens, 1))
        indices = [index for index in range(len(given)) for _ in range(body.n)]
        prompts = [ids_of_prompts[index] for index in indices]
        num_top = max(body.logprobs or 0, body.prompt_logprobs or 0)
        async with self._admission.admitted(len(prompts)):
            generations = [_NOTHING] * len(prompts)
            if body.max_tokens:
                generations = await self._sample(request, prompts, body.max_tokens, body, adapter)
            ranked_prompts: Sequence[list[RankedToken]] = [[]] * len(given)
            if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
                # Handed in together, they share passes.
                worker = self._admission.worker
                scores = [worker.score(ids, num_top=num_top, adapter=adapter) for ids in ids_of_prompts]
                ranked_prompts = await self._admission.wait_all(request, scores)
            num_top = num_top if body.logprobs and body.max_tokens else 0
            ranked = await self._rank(request, prompts, generations, num_top, body.temperature, adapter)
        choices = []
        for place, index in enumerate(indices):
            prompt = RankedPrompt(given[index], prompts[place], ranked_prompts[index])
            choices.append(
                text_choice(place, body, prompt, generations[place], ranked[place] or [], self._model.tokenizer)
            )
        usage = self._admission.count_answer(generations, *ids_of_prompts)
        return _json(envelope("text_completion", body.model, choices, usage))

    async def _sample(
        self,
        request: Request,
        prompts: Sequence[list[int]],
        max_tokens: int,
        body: ChatRequest | CompletionRequest,
        adapter: str | None,
    ) -> list[Generation]:
        seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed % 2**_SEED_BITS
        stop_ids = frozenset(body.stop_token_ids) | (frozenset() if body.ignore_eos else self._model.stop_ids)
        futures = [
            self._admission.worker.sample(
                GenerationRequest(
                    prompt_ids=ids,
                    max_tokens=max_tokens,
                    temperature=body.temperature,
                    top_p=body.top_p,
                    # The first choice has the seed itself, so that any `Generator` reproduces n=1 with that seed.
                    seed=seed if place == 0 else int(digest([seed, place])[:15], 16),
                    stop_ids=stop_ids,
                ),
                adapter,
            )
            for place, ids in enumerate(prompts)
        ]
        return await self._admission.wait_all(request, futures)

    async def _rank(
        self,
        request: Request,
        prompts: Sequence[list[int]],
        generations: Sequence[Generation],
        num_top: int,
        temperature: float,
        adapter: str | None,
    ) -> Sequence[list[RankedToken] | None]:
        """Each completion's tokens with `num_top` alternatives, tempered as they were sampled; None if that is 0."""
        if not num_top:
            return [None] * len(prompts)
        futures = [
            self._admission.worker.score(
                [*ids, *generation.completion_ids], num_top=num_top, temperature=temperature or 1.0, adapter=adapter
            )
            for ids, generation in zip(prompts, generations, strict=True)
        ]
        ranked = await self._admission.wait_all(request, futures)
        return [tokens[len(ids) - 1 :] for ids, tokens in zip(prompts, ranked, strict=True)]

    def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        ids = self._model.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        wrong = [token for token in ids if not 0 <= token < self._model.vocab_size]
        if wrong or not ids:
            seen = f"token id {wrong[0]}" if wrong else "no tokens"
            expected = f"one or more token ids from 0 to {self._model.vocab_size - 1}"
            raise invalid_value(f"prompt holds {seen}; expected {expected}", "prompt")
        return list(ids)

    def _adapter(self, name: str) -> str | None:
        """The adapter that a request's `model` names; None for the model itself."""
        if name == self._model.name:
            return None
        if name not in self._admission.worker.adapters:
            problem = f"model {name!r} does not exist here; this server serves {self._model.name!r}"
            raise ApiError(404, problem, code="model_not_found", param="model")
        return name

    def _check_room(self, prompt_ids: list[int], num_new: int) -> None:
        context = self._model.context_length
        if len(prompt_ids) + num_new > context:
            problem = (
                f"This model's maximum context length is {context} tokens, but the prompt has {len(prompt_ids)} tokens "
                f"and at least {num_new} must follow; shorten the messages"
            )
            raise ApiError(400, problem, code="context_length_exceeded", param="messages")


class UpdateRoutes:
    """Routes that change the served model, as vLLM has them; each answers once the change is made.

    They load any file of this machine, so a server offers them only on request.
    """

    def __init__(self, worker: ModelWorker) -> None:
        self._engine = worker

    async def load_adapter(self, body: LoadAdapterRequest) -> Response:
        """POST /v1/load_lora_adapter: requests may then name the adapter as their model."""
        name, folder, in_place = body.lora_name, body.lora_path, body.load_inplace
        await self._change(lambda model: model.load(name, folder, in_place=in_place), name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, body: UnloadAdapterRequest) -> Response:
        """POST /v1/unload_lora_adapter."""
        await self._change(lambda model: model.unload(body.lora_name), body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def call_workers(self, body: CollectiveCall) -> Response:
        """POST /collective_rpc: loads the weights of a folder and drops all adapters."""
        await self._change(lambda model: model.reload(body.arguments.weights_path), None)
        return JSONResponse({"results": [None]})

    async def reset_prefix_cache(self) -> Response:
        """POST /reset_prefix_cache: does nothing, since every change drops the caches it invalidates."""
        return Response()

    async def _change(self, apply: Callable[[AdaptedModel], None], adapter: str | None) -> None:
        try:
            await asyncio.wrap_future(self._engine.change(apply, adapter))
        except ValueError as error:
            is_missing = "cannot be found" in str(error) or "No adapter found" in str(error)
            code = "not_found" if is_missing else "invalid_value"
            raise ApiError(404 if is_missing else 400, str(error), code=code) from error


def _json(value: JsonObject) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
