import pytest
import torch
from torch import nn

from stillhouse.training.loop.weights import WeightAverage

STEPS = [torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.0]), torch.tensor([-5.0, 4.0])]
DECAY = 0.8


def trained(steps: list[torch.Tensor]) -> tuple[nn.Parameter, WeightAverage]:
    parameter = nn.Parameter(torch.full((2,), 100.0))
    average = WeightAverage({"w": parameter}, DECAY)
    for weights in steps:
        with torch.no_grad():
            parameter.copy_(weights)
        average.update()
    return parameter, average


def test_mean_weighs_each_step_by_its_age_and_the_start_not_at_all():
    _, average = trained(STEPS)
    expected = (DECAY**2 * STEPS[0] + DECAY * STEPS[1] + STEPS[2]) / (DECAY**2 + DECAY + 1)
    torch.testing.assert_close(average.state()["w"], expected)


def test_swapping_lends_the_mean_to_the_model_and_gives_the_weights_back_after_an_error_too():
    parameter, average = trained(STEPS)
    mean = average.state()["w"].clone()

    def validate() -> None:
        with average.swapped():
            assert torch.equal(parameter, mean)
            raise KeyError

    with pytest.raises(KeyError):
        validate()
    assert torch.equal(parameter, STEPS[-1])
    assert torch.equal(average.state()["w"], mean)


def test_continued_mean_is_bitwise_the_uninterrupted_one():
    _, whole = trained(STEPS)
    _, first = trained(STEPS[:2])
    parameter, second = trained([])
    second.load(first.state())
    with torch.no_grad():
        parameter.copy_(STEPS[2])
    second.update()
    assert torch.equal(second.state()["w"], whole.state()["w"])
