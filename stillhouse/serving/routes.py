"""HTTP routes: validate a request, sample, score, answer.

Log-probabilities of sampled tokens are those of the distribution sampled from, softmax(logits / temperature), before
`top_p` cuts it; those of a prompt's tokens are untempered.
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
from stillhouse.serving.completions import ServedModel, start
from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ApiError, ChatRequest, CompletionRequest, invalid_value
from stillhouse.serving.score import RankedToken
from stillhouse.types import JsonObject

_Body = ChatRequest | CompletionRequest
_NOTHING: Final = Completion(Generation([], [], "length"), "")


class Routes:
    """The routes of one served model."""

    def __init__(self, model: ServedModel, admission: AdmissionController) -> None:
        self._model = model
        self._admission = admission

    async def health(self) -> Response:
        return _json({"status": "ok"})

    async def models(self) -> Response:
        return _json({"object": "list", "data": [self._entry()]})

    async def model(self, name: str) -> Response:
        self._check_name(name)
        return _json(self._entry())

    async def stats(self) -> Response:
        return _json(self._admission.stats())

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        self._check_name(body.model)
        try:
            tokenizer = with_template_defaults(self._model.tokenizer, body.chat_template_kwargs)
            prompt_ids = render(tokenizer, body.conversation(), body.offered_tools(), add_generation_prompt=True)
        except ConfigError as error:
            raise invalid_value(str(error), "chat_template_kwargs") from error
        except TemplateError as error:
            raise invalid_value(str(error), "messages") from error
        self._check_room(prompt_ids, num_new=1)
        prompts = [prompt_ids] * body.n
        async with self._admission.admitted(body.n):
            completions = await self._sample(request, body, prompts, body.limit or self._model.context_length)
            completions = await self._rank(request, body, prompts, completions, body.top_logprobs)
        choices = [
            chat_choice(index, body, completion, self._model.tokenizer) for index, completion in enumerate(completions)
        ]
        generations = [completion.generation for completion in completions]
        answer = envelope("chat.completion", body.model, choices, self._admission.count_answer(generations, prompt_ids))
        if body.return_token_ids:
            answer["prompt_token_ids"] = prompt_ids
        return _json(answer)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        self._check_name(body.model)
        given = body.prompts()
        ids_of_prompts = [self._prompt_ids(prompt) for prompt in given]
        for ids in ids_of_prompts:
            self._check_room(ids, num_new=min(body.max_tokens, 1))
        indices = [index for index in range(len(given)) for _ in range(body.n)]
        prompts = [ids_of_prompts[index] for index in indices]
        num_top = max(body.logprobs or 0, body.prompt_logprobs or 0)
        async with self._admission.admitted(len(indices)):
            completions = [_NOTHING] * len(indices)
            if body.max_tokens:
                completions = await self._sample(request, body, prompts, body.max_tokens)
            ranked_prompts: Sequence[list[RankedToken]] = [[]] * len(given)
            if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
                # Handed in together, they share passes.
                worker = self._admission.worker
                scores = [worker.score(ids, num_top=num_top) for ids in ids_of_prompts]
                ranked_prompts = await self._admission.wait_all(request, scores)
            num_top = num_top if body.logprobs and body.max_tokens else 0
            completions = await self._rank(request, body, prompts, completions, num_top)
        choices = []
        for place, index in enumerate(indices):
            prompt = RankedPrompt(given[index], prompts[place], ranked_prompts[index])
            choices.append(text_choice(place, body, prompt, completions[place], self._model.tokenizer))
        generations = [completion.generation for completion in completions]
        usage = self._admission.count_answer(generations, *ids_of_prompts)
        return _json(envelope("text_completion", body.model, choices, usage))

    async def _sample(
        self, request: Request, body: _Body, prompts: Sequence[list[int]], max_tokens: int
    ) -> list[Completion]:
        running = start(self._admission.worker, self._model, body, prompts, max_tokens)
        generations = await self._admission.wait_all(request, [future for future, _ in running])
        pairs = zip(running, generations, strict=True)
        return [Completion(generation, text.of(generation.completion_ids)) for (_, text), generation in pairs]

    async def _rank(
        self,
        request: Request,
        body: _Body,
        prompts: Sequence[list[int]],
        completions: list[Completion],
        num_top: int,
    ) -> list[Completion]:
        """Return the completions with `num_top` alternatives of each token, tempered as they were sampled, or raw."""
        if not num_top:
            return completions
        is_raw = isinstance(body, ChatRequest) and body.raw_logprobs
        temperature = 1.0 if is_raw else body.temperature or 1.0
        worker = self._admission.worker
        pairs = list(zip(prompts, completions, strict=True))
        futures = [
            worker.score([*ids, *completion.generation.completion_ids], num_top=num_top, temperature=temperature)
            for ids, completion in pairs
        ]
        ranked = await self._admission.wait_all(request, futures)
        return [
            completion._replace(ranked=tokens[len(ids) - 1 :])
            for (ids, completion), tokens in zip(pairs, ranked, strict=True)
        ]

    def _entry(self) -> JsonObject:
        return {
            "id": self._model.name,
            "object": "model",
            "created": 0,
            "owned_by": "stillhouse",
            "max_model_len": self._model.context_length,
        }

    def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        ids = self._model.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        wrong = [token for token in ids if not 0 <= token < self._model.vocab_size]
        if wrong or not ids:
            seen = f"token id {wrong[0]}" if wrong else "no tokens"
            expected = f"one or more token ids from 0 to {self._model.vocab_size - 1}"
            raise invalid_value(f"prompt holds {seen}; expected {expected}", "prompt")
        return list(ids)

    def _check_name(self, name: str) -> None:
        if name != self._model.name:
            problem = f"model {name!r} does not exist here; this server serves {self._model.name!r}"
            raise ApiError(404, problem, code="model_not_found", param="model")

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
