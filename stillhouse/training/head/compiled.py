"""Compiled kernels for the passes over the logits of a chunk, as a GPU runs them.

Operation by operation, softmax and gradient of bfloat16 logits move about 53 bytes a logit through a GPU's memory, by
way of float32 copies; compiled, they move 6 to 8. Between scores and gradients the buffer keeps the logits, and nothing
is rounded to their type before the gradient.

Dimensions: C tokens of a chunk, V vocabulary, S shared ids.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from stillhouse.training.head.scores import TokenScores
from stillhouse.training.head.softmax import Slopes, block_rows, target_gradients, wide

MIN_TOKENS: Final = 2
"""Tokens of the smallest chunk that is compiled: a size of 0 or 1 would be compiled again, for that size alone."""


def compiled_scores(
    logits_CV: Tensor, targets_C: Tensor, temperature: float = 1.0, *, wants_entropy: bool = False
) -> TokenScores:
    """Return the scores of `targets_C` under softmax(logits / temperature); the logits stay."""
    return TokenScores(targets_C, *compiled(_scores)(*any_length(logits_CV, targets_C), temperature, wants_entropy))


def compiled_gradients_(
    logits_CV: Tensor,
    scores: TokenScores,
    slopes: Slopes,
    divergence_gradients_CS: Tensor | None = None,
    temperature: float = 1.0,
) -> None:
    """Overwrite logits with the gradient of a loss by logits / temperature; see `softmax.logit_gradients_`."""
    divergence = () if divergence_gradients_CS is None else (divergence_gradients_CS, slopes.divergence_C)
    compiled(_gradients_)(
        temperature,
        *any_length(
            logits_CV,
            scores.targets_N,
            scores.log_normalisers_N,
            slopes.logprobs_C,
            target_gradients(scores, slopes),
            *divergence,
        ),
    )


def by_rows(
    function: Callable[..., Any], *tensors_C: Tensor, settings: tuple[Any, ...], is_compiled: bool
) -> list[Any]:
    """Call an elementwise function of the tokens of a chunk: compiled for all at once, else for some rows at a time.

    It takes the tensors, of which the first is the largest, and the settings. Returns what each call returned.
    """
    if is_compiled and len(tensors_C[0]) >= MIN_TOKENS:
        return [compiled(function)(*any_length(*tensors_C), *settings)]
    num_rows = block_rows(tensors_C[0])
    return [function(*rows, *settings) for rows in zip(*(tensor.split(num_rows) for tensor in tensors_C), strict=True)]


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled, once in a process."""
    return torch.compile(function)


def any_length(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Mark the tensors as of dynamic length, so that code compiled for one chunk serves chunks of other lengths."""
    for tensor in tensors:
        if tensor is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensors


def _scores(logits_CV: Tensor, targets_C: Tensor, temperature: float, wants_entropy: bool) -> tuple[Tensor | None, ...]:
    scaled_CV = logits_CV.to(wide(logits_CV.dtype)) / temperature
    top_C = scaled_CV.amax(dim=-1)
    shifted_CV = scaled_CV - top_C[:, None]
    exponentials_CV = shifted_CV.exp()
    sums_C = exponentials_CV.sum(dim=-1)
    logs_C = sums_C.log()
    chosen_C = scaled_CV.gather(1, targets_C[:, None]).squeeze(1)
    entropy_C = logs_C - (exponentials_CV * shifted_CV).sum(dim=-1) / sums_C if wants_entropy else None
    return chosen_C - top_C - logs_C, top_C + logs_C, chosen_C >= top_C, entropy_C


def _gradients_(
    temperature: float,
    logits_CV: Tensor,
    targets_C: Tensor,
    log_normalisers_C: Tensor,
    of_logprobs_C: Tensor,
    chosen_C: Tensor,
    divergence_gradients_CS: Tensor | None = None,
    of_divergence_C: Tensor | None = None,
) -> None:
    vocabulary = logits_CV.shape[1]
    probabilities_CV = (logits_CV.to(of_logprobs_C.dtype) / temperature - log_normalisers_C[:, None]).exp()
    ids_V = torch.arange(vocabulary, device=logits_CV.device)
    gradients_CV = -of_logprobs_C[:, None] * probabilities_CV
    gradients_CV = torch.where(ids_V == targets_C[:, None], chosen_C[:, None], gradients_CV)
    if divergence_gradients_CS is not None and of_divergence_C is not None:
        weighted_CS = divergence_gradients_CS.to(of_logprobs_C.dtype) * of_divergence_C[:, None]
        gradients_CV = gradients_CV + pad(weighted_CS, (0, vocabulary - weighted_CS.shape[1]))
    logits_CV.copy_(gradients_CV)
