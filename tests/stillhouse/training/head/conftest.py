from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Sizes(TorchDispatchMode):
    """While entered, records the shapes of all tensors that come into being."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        returned = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.shapes |= {tuple(x.shape) for x in returned if x.untyped_storage().data_ptr() not in known}
        return result


@pytest.fixture
def sizes() -> Sizes:
    return Sizes()
