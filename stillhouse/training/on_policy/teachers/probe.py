"""Scores a few tokens before training starts, so that an unusable teacher is found early."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.errors import ConfigError, EndpointError
from stillhouse.inference.scoring.ledger import SAME_TEACHER
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.teacher import Teacher
from stillhouse.training.on_policy.teachers.vocabulary import check_spellings, spelling_sample
from stillhouse.types import Sample

_TEXT: Final = "The answer to the question is 42."
_NUM_TOKENS: Final = 5
_NUM_SPELT: Final = 64
_NUM_REPLICAS: Final = 8
"""Requests for the same tokens at once."""


def probe(
    name: str, score: Callable[[Sequence[Sample]], list[list[float]]], tokenizer: PreTrainedTokenizerBase
) -> list[float]:
    """Return the log-probabilities of a short text, after checks of what `score` gives for the tokens of views.

    Raises:
        EndpointError: they are not finite or above 0, or differ between alone and batched with a longer sequence.
    """
    view = probe_view(tokenizer)
    [alone] = score([view])
    _, behind = score([_all_but_first(view.token_ids * 3), view])
    for logprobs in (alone, behind):
        if len(logprobs) != sum(view.loss_mask) or not all(math.isfinite(p) and p <= 0.0 for p in logprobs):
            raise EndpointError(
                f"teacher {name!r}: log-probabilities of the tokens {view.token_ids[1:]} are {logprobs}; expected as "
                "many finite numbers of at most 0. Check its weights, and `dtype` of a local teacher"
            )
    difference = _largest_difference(alone, behind)
    if difference > SAME_TEACHER:
        raise EndpointError(
            f"teacher {name!r} differs from itself by {difference:.3g} nats for the same tokens in another request, "
            f"{alone} and {behind}; expected at most {SAME_TEACHER}. It may mix up the sequences of a request"
        )
    return alone


def probe_local(teacher: Teacher, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    """Probe a teacher in this process."""

    def score(views: Sequence[Sample]) -> list[list[float]]:
        return [answer.logprobs for answer in teacher.start(views).result()]

    return probe(teacher.name, score, tokenizer)


def probe_server(teacher: ServedTeacher, temperature: float, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    """Probe a server, and check its vocabulary, temperature and replicas; return as `probe`.

    The same tokens are sent several times at once, so that replicas behind one address answer side by side: those of
    serverless endpoints were seen to differ by more than a training changes (SkyRL#2256).

    Raises:
        TrainingError: it has another vocabulary.
        ConfigError: the temperature is not 1, and its log-probabilities ignore it, as those of vLLM do.
        EndpointError: the scores cannot be used.
    """
    ids = spelling_sample(tokenizer, _NUM_SPELT)
    check_spellings(teacher.name, ids, teacher.spellings(_all_but_first(ids)), tokenizer)
    probed = probe(teacher.name, lambda views: teacher.ask(views, temperature), tokenizer)
    view = probe_view(tokenizer)
    answers = teacher.ask_at_once(view, temperature, _NUM_REPLICAS)
    difference = max(_largest_difference(probed, answer) for answer in answers)
    if difference > SAME_TEACHER:
        raise EndpointError(
            f"teacher {teacher.name!r} was asked for the same {len(probed)} tokens {_NUM_REPLICAS} times at once, and "
            f"its answers differ by up to {difference:.3g} nats; expected at most {SAME_TEACHER}. Replicas behind one "
            "address serve other weights or precisions: name one of them in base_url, or start them alike"
        )
    if temperature == 1.0:
        return probed
    tempered, plain = (teacher.ask([view], asked)[0] for asked in (temperature, 1.0))
    if _largest_difference(tempered, plain) <= SAME_TEACHER:
        raise ConfigError(
            f"on_policy.temperature = {temperature}: teacher {teacher.name!r} gives the same log-probabilities at any "
            "temperature, so that they are not those of the distribution that the student samples from. Set it to 1, "
            "or use a local teacher",
            code="temperature",
        )
    return probed


def probe_view(tokenizer: PreTrainedTokenizerBase) -> Sample:
    """Return a short text; all tokens but the first are scored."""
    return _all_but_first(tokenizer(_TEXT, add_special_tokens=False)["input_ids"][:_NUM_TOKENS])


def _largest_difference(ones: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


def _all_but_first(ids: list[int]) -> Sample:
    return Sample(ids, [False] + [True] * (len(ids) - 1), "probe")
