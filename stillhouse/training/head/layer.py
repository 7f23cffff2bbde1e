"""Matrix products of an output layer, and the soft cap that some families put on them, a chunk of tokens at a time.

Dimensions: N loss positions, C those of a chunk, H hidden, V vocabulary.
"""

import torch
from torch import Tensor

from stillhouse.training.head.compiled import by_rows
from stillhouse.training.head.softmax import block_rows, wide


class OutputLayer:
    """Logits of hidden states in `dtype`, the type of the products, and the gradients of hidden states and weights."""

    def __init__(self, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, dtype: torch.dtype) -> None:
        self._hidden_NH, self._weight_VH = hidden_NH.detach().to(dtype), weight_VH.detach().to(dtype)
        self._bias_V = None if bias_V is None else bias_V.detach().to(dtype)
        self.gradients = [
            torch.empty_like(tensor, dtype=sum_dtype)
            if torch.is_grad_enabled() and tensor is not None and tensor.requires_grad
            else None
            for tensor, sum_dtype in ((hidden_NH, dtype), (weight_VH, wide(dtype)), (bias_V, wide(dtype)))
        ]
        """Of hidden states, weight and bias: complete after `backward` of all chunks, None where frozen."""
        self.is_trained = any(gradient is not None for gradient in self.gradients)
        self._is_begun = False

    def logits(self, chunk: slice, buffer_CV: Tensor) -> Tensor:
        """Return logits of a chunk, in the buffer."""
        hidden_CH = self._hidden_NH[chunk]
        out_CV = buffer_CV[: len(hidden_CH)]
        if self._bias_V is None:
            return torch.mm(hidden_CH, self._weight_VH.t(), out=out_CV)
        return torch.addmm(self._bias_V, hidden_CH, self._weight_VH.t(), out=out_CV)

    def backward(self, chunk: slice, logit_gradients_CV: Tensor) -> None:
        """Add the gradients of a chunk; the first chunk overwrites the buffers."""
        hidden_NH, weight_VH, bias_V = self.gradients
        is_first, self._is_begun = not self._is_begun, True
        if hidden_NH is not None:
            torch.mm(logit_gradients_CV, self._weight_VH, out=hidden_NH[chunk])
        if weight_VH is not None:
            _add_product_(weight_VH, logit_gradients_CV.t(), self._hidden_NH[chunk], is_first=is_first)
        if bias_V is not None:
            chunk_V = logit_gradients_CV.sum(dim=0, dtype=bias_V.dtype)
            bias_V.copy_(chunk_V if is_first else chunk_V + bias_V)


def _add_product_(sum_VH: Tensor, left_VC: Tensor, right_CH: Tensor, *, is_first: bool) -> None:
    """Add left @ right, or write it if it is the first; a product of a smaller type is rounded before it is added."""
    if sum_VH.dtype == left_VC.dtype:
        sum_VH.addmm_(left_VC, right_CH, beta=0.0 if is_first else 1.0)
        return
    num_rows = block_rows(sum_VH)
    for sum_RH, left_RC in zip(sum_VH.split(num_rows), left_VC.split(num_rows), strict=True):
        if is_first:
            sum_RH.copy_(left_RC @ right_CH)
        else:
            sum_RH += left_RC @ right_CH


class SoftCap:
    """Caps the products z, cap * tanh(factor * z / cap), a chunk at a time, and takes gradients back through the cap.

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
