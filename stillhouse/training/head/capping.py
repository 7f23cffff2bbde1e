"""The soft cap that some families put on their logits, cap * tanh(factor * z / cap), and its derivative.

Dimensions: C tokens of a chunk, V vocabulary.
"""

import torch
from torch import Tensor

from stillhouse.training.head.compiled import by_rows
from stillhouse.training.head.softmax import wide


class SoftCap:
    """Caps the products of an output layer, a chunk at a time, and takes gradients back through the cap.

    Capped logits are float32 (float64 for float64) and never rounded to the type of the products, whose buffer keeps
    the derivative in the meantime.

    `like_CV` is the buffer of the products; with `compiled` whole chunks are capped by a compiled kernel.
    """

    def __init__(self, factor: float, cap: float, like_CV: Tensor, *, compiled: bool = False) -> None:
        self._factor, self._cap = factor, cap
        self._buffer_CV = torch.empty_like(like_CV, dtype=wide(like_CV.dtype))
        self._compiled = compiled

    def capped_(self, products_CV: Tensor) -> Tensor:
        """Return the capped logits of a chunk; the derivative by the products overwrites these."""
        capped_CV = self._buffer_CV[: len(products_CV)]
        settings = (self._factor, self._cap)
        by_rows(_cap_, products_CV, capped_CV, settings=settings, is_compiled=self._compiled)
        return capped_CV

    def backward_(self, derivatives_CV: Tensor, gradients_CV: Tensor) -> Tensor:
        """Overwrite the derivatives that `capped_` left with the gradient by the products; return it."""
        return torch.mul(gradients_CV, derivatives_CV, out=derivatives_CV)


def _cap_(products_CV: Tensor, capped_CV: Tensor, factor: float, cap: float) -> None:
    tanh_CV = (products_CV.to(capped_CV.dtype) * (factor / cap)).tanh()
    products_CV.copy_((1.0 - tanh_CV.square()) * factor)
    capped_CV.copy_(tanh_CV * cap)
