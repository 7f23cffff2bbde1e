"""Log-probabilities of given tokens from SGLang, by `/generate` with `return_logprob`.

Facts of its answers (https://docs.sglang.io/basic_usage/native_api.html and its scheduler's code): one object a prompt,
whose `meta_info.input_token_logprobs` has a triple (log-probability, token id, text or None) for each token from
`logprob_start_len` on. The first triple has no log-probability, wherever it starts. What stands before the start can
come from the server's prefix cache, so it starts just before the first scored token.
"""

from collections.abc import Sequence

from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.served.answers import WrongAnswer, checked
from stillhouse.types import JsonObject


class SglangApi:
    """Requests to an SGLang server and what its answers say."""

    path = "/generate"

    def body(self, views: Sequence[TeacherView], temperature: float, *, spelt: bool = False) -> JsonObject:
        """The request for all views; `spelt` asks for the tokens' texts too."""
        return {
            "input_ids": [view.token_ids for view in views],
            "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
            "return_logprob": True,
            "logprob_start_len": [_start(view) for view in views],
            "return_text_in_logprobs": spelt,
        }

    def logprobs(self, answer: object, views: Sequence[TeacherView]) -> list[list[float]]:
        """Of the scored tokens of each view.

        Raises:
            WrongAnswer: the answer does not give them.
        """
        return [
            [
                checked(triple[0], triple[1])
                for triple, is_scored in zip(triples, view.loss_mask[_start(view) :], strict=True)
                if is_scored
            ]
            for view, triples in zip(views, _triples(answer, views), strict=True)
        ]

    def spellings(self, answer: object, view: TeacherView) -> list[str | None]:
        """How the server writes each token of the one view; None where it does not say."""
        [triples] = _triples(answer, [view])
        return [None] * _start(view) + [triple[2] for triple in triples]


def _start(view: TeacherView) -> int:
    """The token before the first that is scored."""
    return view.loss_mask.index(True) - 1


def _triples(answer: object, views: Sequence[TeacherView]) -> list[list[Sequence]]:
    results = answer if isinstance(answer, list) else [answer]
    if len(results) != len(views):
        raise WrongAnswer(f"it has {len(results)} results for {len(views)} prompts")
    found = []
    for result, view in zip(results, views, strict=True):
        about = result.get("meta_info") if isinstance(result, dict) else None
        triples = about.get("input_token_logprobs") if isinstance(about, dict) else None
        if not isinstance(triples, list) or not all(isinstance(t, list) and len(t) == 3 for t in triples):
            raise WrongAnswer("it has no triples in `meta_info.input_token_logprobs`")
        expected = view.token_ids[_start(view) :]
        if [triple[1] for triple in triples] != expected:
            raise WrongAnswer(
                f"input_token_logprobs are those of {len(triples)} other tokens than the {len(expected)} asked for"
            )
        if _start(view) == 0 and triples[0][0] is not None:
            raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")
        found.append(triples)
    return found
