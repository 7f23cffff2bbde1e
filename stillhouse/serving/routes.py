"""HTTP routes: validate a request, sample, score, answer.

Log-probabilities of sampled tokens are those of the distribution sampled from, softmax(logits / temperature), before
`top_p` or a grammar cuts it; those of a prompt's tokens are untempered.
"""

from collections.abc import Sequence
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import render
from stillhouse.chat.template_defaults import with_template_defaults
from stillhouse.errors import ConfigError
from stillhouse.serving.admission import AdmissionController
from stillhouse.serving.answers import Completion, RankedPrompt, chat_choice, envelope, text_choice
from stillhouse.serving.chat_request import ChatRequest
from stillhouse.serving.completions import PlannedCompletions, ServedModel, start
from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ApiError, CompletionRequest, invalid_value
from stillhouse.serving.score import RankedToken
from stillhouse.types import JsonObject

_NOTHING: Final = Completion(Generation([], [], "length"), "")


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
        return _json({"object": "list", "data": self._models()})

    async def model(self, name: str) -> Response:
        """GET /v1/models/{name}."""
        self._adapter(name)
        return _json(next(model for model in self._models() if model["id"] == name))

    async def stats(self) -> Response:
        """Counters since the start."""
        return _json(self._admission.stats())

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        adapter = self._adapter(body.model)
        try:
            tokenizer = with_template_defaults(self._model.tokenizer, body.chat_template_kwargs)
            prompt_ids = render(tokenizer, body.conversation(), body.offered_tools(), add_generation_prompt=True)
        except ConfigError as error:
            raise invalid_value(str(error), "chat_template_kwargs") from error
        except TemplateError as error:
            raise invalid_value(str(error), "messages") from error
        self._check_room(prompt_ids, num_new=1)
        prompts = [prompt_ids] * body.n
        planned = PlannedCompletions(body, prompts, body.limit or self._model.context_length, adapter)
        async with self._admission.admitted(body.n):
            completions = await self._sample(request, planned)
            completions = await self._rank(request, planned, completions, body.top_logprobs)
        choices = [
            chat_choice(index, body, completion, self._model.tokenizer) for index, completion in enumerate(completions)
        ]
        generations = [completion.generation for completion in completions]
        answer = envelope("chat.completion", body.model, choices, self._admission.count_answer(generations, prompt_ids))
        if body.return_token_ids:
            answer["prompt_token_ids"] = prompt_ids
        return _json(answer)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        adapter = self._adapter(body.model)
        given = body.prompts()
        ids_of_prompts = [self._prompt_ids(prompt) for prompt in given]
        for ids in ids_of_prompts:
            self._check_room(ids, num_new=min(body.max_tokens, 1))
        indices = [index for index in range(len(given)) for _ in range(body.n)]
        planned = PlannedCompletions(body, [ids_of_prompts[index] for index in indices], body.max_tokens, adapter)
        num_top = max(body.logprobs or 0, body.prompt_logprobs or 0)
        async with self._admission.admitted(len(indices)):
            completions = [_NOTHING] * len(indices)
            if body.max_tokens:
                completions = await self._sample(request, planned)
            ranked_prompts: Sequence[list[RankedToken]] = [[]] * len(given)
            if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
                # Handed in together, they share passes.
                worker = self._admission.worker
                scores = [worker.score(ids, num_top=num_top, adapter=adapter) for ids in ids_of_prompts]
                ranked_prompts = await self._admission.wait_all(request, scores)
            num_top = num_top if body.logprobs and body.max_tokens else 0
            completions = await self._rank(request, planned, completions, num_top)
        choices = []
        for place, index in enumerate(indices):
            prompt = RankedPrompt(given[index], planned.prompts[place], ranked_prompts[index])
            choices.append(text_choice(place, body, prompt, completions[place], self._model.tokenizer))
        generations = [completion.generation for completion in completions]
        usage = self._admission.count_answer(generations, *ids_of_prompts)
        return _json(envelope("text_completion", body.model, choices, usage))

    async def _sample(self, request: Request, planned: PlannedCompletions) -> list[Completion]:
        running = start(self._admission.worker, self._model, planned)
        generations = await self._admission.wait_all(request, [completion.future for completion in running])
        pairs = zip(running, generations, strict=True)
        return [completion.finished(generation) for completion, generation in pairs]

    async def _rank(
        self, request: Request, planned: PlannedCompletions, completions: list[Completion], num_top: int
    ) -> list[Completion]:
        """The completions with `num_top` alternatives of each token, tempered as they were sampled unless asked raw."""
        if not num_top:
            return completions
        body = planned.body
        is_raw = isinstance(body, ChatRequest) and body.raw_logprobs
        temperature = 1.0 if is_raw else body.temperature or 1.0
        generations = [completion.generation for completion in completions]
        futures = [
            self._admission.worker.score(
                [*ids, *generation.completion_ids], num_top=num_top, temperature=temperature, adapter=planned.adapter
            )
            for ids, generation in zip(planned.prompts, generations, strict=True)
        ]
        ranked = await self._admission.wait_all(request, futures)
        return [
            completion._replace(ranked=tokens[len(ids) - 1 :])
            for completion, ids, tokens in zip(completions, planned.prompts, ranked, strict=True)
        ]

    def _models(self) -> list[JsonObject]:
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
        return [entry, *adapters]

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


def _json(value: JsonObject) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
