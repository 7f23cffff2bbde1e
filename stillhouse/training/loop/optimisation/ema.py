"""A running mean of the weights, which is steadier than the weights of any one step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from stillhouse.training.loop.parallel.whole import load_whole


class WeightAverage:
    """The mean of the weights after each step, where a step t steps ago counts decay^t.

    After n steps the mean is (1 - decay) / (1 - decay^n) * sum_t decay^t w_{n-t}: the running mean of Adam with its
    correction of the start (arXiv 1412.6980, section 3), in the form avg_n = d_n avg_{n-1} + (1 - d_n) w_n with
    d_n = decay (1 - decay^{n-1}) / (1 - decay^n). So the weights before the first step have no part in it, and a short
    training has a mean over its own steps.

    Args:
        parameters: what is trained, by name; the means have their type and device, and twice that much is held.
        decay: of one step, above 0 and below 1.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self._means = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._num_updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Takes the weights after one more step into the mean."""
        self._num_updates += 1
        before, now = (1.0 - self._decay**n for n in (self._num_updates - 1, self._num_updates))
        mix = get_ema_multi_avg_fn(self._decay * before / now)
        mix(list(self._means.values()), list(self._parameters.values()), self._num_updates)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The model has the mean for its weights while the context lasts: for validation and for writing it.

        Exchanges them in place, also when the context ends by an error; nothing may be trained meanwhile.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state(self) -> dict[str, Tensor]:
        """The means by parameter name, and the number of steps in them as `num_updates`."""
        return {**self._means, "num_updates": torch.tensor(self._num_updates)}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continues from a `state` of whole tensors."""
        load_whole(self._means, state)
        self._num_updates = int(state["num_updates"])

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, mean in self._means.items():
            parameter = self._parameters[name]
            weights = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(weights)
