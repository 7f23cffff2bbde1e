import pytest
import torch

from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.hidden_cache import HiddenCache

ONE = TeacherView([3, 1, 4], [False, True, True])
TWO = TeacherView([3, 1, 4], [False, False, True])


class Computed:
    """Hidden states of another value at each call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> torch.Tensor:
        self.num_calls += 1
        return torch.full((2, 8), float(self.num_calls))


def first(cache: HiddenCache, views: list[TeacherView], compute: Computed) -> float:
    return cache.get(views, compute)[0, 0].item()


def test_what_was_computed_for_the_same_tokens_and_masks_is_not_computed_again() -> None:
    cache, compute = HiddenCache(), Computed()
    rows = [[ONE, TWO], [TWO, ONE], [ONE], [TWO]]
    assert [first(cache, views, compute) for views in rows] == [1, 2, 3, 4]
    assert [first(cache, views, compute) for views in rows] == [1, 2, 3, 4]
    assert compute.num_calls == 4


@pytest.mark.parametrize("num_kept", [0, 1])
def test_what_does_not_fit_is_computed_each_time_and_what_is_kept_stays(num_kept: int) -> None:
    cache, compute = HiddenCache(max_bytes=num_kept * 2 * 8 * 4), Computed()
    assert [first(cache, views, compute) for views in ([ONE], [TWO], [ONE], [TWO])] == (
        [1, 2, 1, 3] if num_kept else [1, 2, 3, 4]
    )


def test_the_next_batch_has_all_the_room_again() -> None:
    cache, compute = HiddenCache(max_bytes=2 * 8 * 4), Computed()
    first(cache, [ONE], compute)
    cache.clear()
    assert [first(cache, views, compute) for views in ([TWO], [TWO], [ONE])] == [2, 2, 3]
