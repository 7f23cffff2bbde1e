"""Log-probabilities of given tokens from vLLM, by `prompt_logprobs` of `/v1/completions`.

Facts of its answers (https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html and its OpenAI server's code):
`choices[i].prompt_logprobs` has None for the first token and for each other a JSON object by token id as text. The
actual token is always in it, in no certain place, whatever number of alternatives was asked for; 0 asks for it alone,
which no `--max-logprobs` forbids. One token must be generated. An infinitely small probability is written as -9999.
"""

from collections.abc import Sequence

from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.served.answers import WrongAnswer, checked, choices_of
from stillhouse.types import JsonObject


class VllmApi:
    """Requests to a vLLM server and what its answers say.

    Args:
        model: the name the server knows it by.
    """

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self._model = model

    def body(self, views: Sequence[TeacherView], temperature: float, *, spelt: bool = False) -> JsonObject:
        """The request for all views; answers always spell tokens."""
        return {
            "model": self._model,
            "prompt": [view.token_ids for view in views],
            "max_tokens": 1,
            "temperature": temperature,
            "prompt_logprobs": 0,
        }

    def logprobs(self, answer: object, views: Sequence[TeacherView]) -> list[list[float]]:
        """Of the scored tokens of each view.

        Raises:
            WrongAnswer: the answer does not give them.
        """
        return [
            [
                checked(_entry(entry, token).get("logprob"), token)
                for entry, token, is_scored in zip(entries, view.token_ids, view.loss_mask, strict=True)
                if is_scored
            ]
            for view, entries in zip(views, _entries(answer, views), strict=True)
        ]

    def spellings(self, answer: object, view: TeacherView) -> list[str | None]:
        """How the server writes each token of the one view; None where it does not say."""
        [entries] = _entries(answer, [view])
        return [
            _entry(entry, token).get("decoded_token") if entry else None
            for entry, token in zip(entries, view.token_ids, strict=True)
        ]


def _entries(answer: object, views: Sequence[TeacherView]) -> list[list[JsonObject]]:
    found = []
    for choice, view in zip(choices_of(answer, len(views)), views, strict=True):
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list):
            raise WrongAnswer("it has no `prompt_logprobs`")
        if len(entries) != len(view.token_ids):
            raise WrongAnswer(f"it has {len(entries)} prompt_logprobs for {len(view.token_ids)} tokens")
        if entries[0] is not None:
            raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")
        found.append(entries)
    return found


def _entry(entry: object, token: int) -> JsonObject:
    if not isinstance(entry, dict) or not isinstance(found := entry.get(str(token)), dict):
        seen = sorted(entry) if isinstance(entry, dict) else entry
        raise WrongAnswer(f"the log-probability of token {token} is missing; there are those of {seen}")
    return found
