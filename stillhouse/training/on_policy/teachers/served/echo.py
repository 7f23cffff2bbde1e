"""Log-probabilities of given tokens from completions with `echo`, in the form that OpenAI's API once had.

Facts (https://platform.openai.com/docs/api-reference/completions): `choices[i].logprobs.token_logprobs` has None for
the first token, and an entry for each generated one at the end. `tokens` are texts, in which parts of a character are
all alike; vLLM and others write `token_id:123` where `return_tokens_as_token_ids` is set.
"""

from collections.abc import Sequence

from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.served.answers import WrongAnswer, checked, choices_of
from stillhouse.types import JsonObject

_AS_ID = "token_id:"


class EchoApi:
    """Requests to a server with `echo` and what its answers say.

    Args:
        model: the name the server knows it by.
        with_ids: ask for token ids in place of their texts, which some servers refuse.
    """

    path = "/v1/completions"

    def __init__(self, model: str, *, with_ids: bool = True) -> None:
        self._model = model
        self._with_ids = with_ids

    def body(self, views: Sequence[TeacherView], temperature: float, *, spelt: bool = False) -> JsonObject:
        """The request for all views; `spelt` asks for the tokens' texts."""
        body: JsonObject = {
            "model": self._model,
            "prompt": [view.token_ids for view in views],
            "max_tokens": 1,
            "temperature": temperature,
            "echo": True,
            # 0 stands for none at all on some servers.
            "logprobs": 1,
        }
        return body | {"return_tokens_as_token_ids": True} if self._with_ids and not spelt else body

    def logprobs(self, answer: object, views: Sequence[TeacherView]) -> list[list[float]]:
        """Of the scored tokens of each view.

        Raises:
            WrongAnswer: the answer does not give them.
        """
        found = []
        for choice, view in zip(choices_of(answer, len(views)), views, strict=True):
            tokens, logprobs = _lists(choice, len(view.token_ids))
            _check_ids(tokens, view.token_ids)
            scored = zip(logprobs, view.token_ids, view.loss_mask, strict=True)
            found.append([checked(logprob, token) for logprob, token, is_scored in scored if is_scored])
        return found

    def spellings(self, answer: object, view: TeacherView) -> list[str | None]:
        """How the server writes each token of the one view; None where it does not say."""
        [choice] = choices_of(answer, 1)
        tokens, _ = _lists(choice, len(view.token_ids))
        return [None if str(token).startswith(_AS_ID) else str(token) for token in tokens]


def _lists(choice: JsonObject, num_tokens: int) -> tuple[list, list]:
    """Tokens and log-probabilities of the prompt, without the generated token behind them."""
    about = choice.get("logprobs")
    if not isinstance(about, dict):
        raise WrongAnswer("it has no `logprobs`")
    tokens, logprobs = about.get("tokens"), about.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        raise WrongAnswer("`logprobs` has no `tokens` and `token_logprobs` of one length")
    if len(tokens) - num_tokens not in (0, 1):
        raise WrongAnswer(f"it has {len(tokens)} echoed tokens for {num_tokens} and one that is generated")
    if logprobs[0] is not None:
        raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")
    return tokens[:num_tokens], logprobs[:num_tokens]


def _check_ids(tokens: Sequence[object], expected: Sequence[int]) -> None:
    for token, token_id in zip(tokens, expected, strict=True):
        if str(token).startswith(_AS_ID) and token != f"{_AS_ID}{token_id}":
            raise WrongAnswer(f"it echoes {token} in place of token {token_id}")
