import json
import math
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from stillhouse.errors import TrainingError
from stillhouse.training.loop.stopping import WINDOW, BestValidation, DivergenceWatch, named_prompts
from stillhouse.types import Sample

VOCABULARY = 151_936
SAMPLES = [Sample([1, 2], [False, True], f"prompt{number}") for number in (2, 1)]


def watch(metric: str | None = "loss") -> DivergenceWatch:
    return DivergenceWatch("sft", metric, vocabulary_size=VOCABULARY, checkpoints=Path("checkpoints"))


def feed(watched: DivergenceWatch, losses: Iterable[float]) -> int | None:
    """The step at which training was stopped."""
    for step, loss in enumerate(losses):
        try:
            watched.observe(step, {"loss": loss}, SAMPLES)
        except TrainingError:
            return step
    return None


def learning(num_steps: int, start: float = 1.5, end: float = 0.5) -> list[float]:
    noise = random.Random(0)
    return [end + (start - end) * math.exp(-step / 30) + noise.uniform(-0.2, 0.2) for step in range(num_steps)]


def test_a_loss_that_goes_up_for_good_stops_training_within_a_window():
    stopped = feed(watch(), learning(200) + [9.0] * WINDOW)
    assert stopped is not None
    assert 200 <= stopped < 200 + WINDOW


def test_a_model_that_breaks_before_its_first_window_is_full_is_stopped():
    assert feed(watch(), [1.2, 1.1, 4.0, *[11.0] * WINDOW]) is not None


@pytest.mark.parametrize(
    "losses",
    [
        learning(300),
        [*learning(100), 40.0, 30.0, *learning(100, start=0.5)],
        [0.01] * 100 + [0.2] * 100,
        learning(200, start=math.log(VOCABULARY), end=3.0),
        [math.log(VOCABULARY)] * 100,
        [random.Random(seed).lognormvariate(0.0, 1.8) for seed in range(5000)],
    ],
    ids=["noise", "two spikes", "perfect, then less so", "from nothing", "learning nothing", "heavy tails"],
)
def test_what_is_no_divergence_does_not_stop_training(losses: list[float]):
    assert feed(watch(), losses) is None


@pytest.mark.parametrize("metric", [None, "teacher_kl"])
def test_nothing_is_watched_without_the_metric(metric: str | None):
    watched = watch(metric)
    assert feed(watched, [1.0] * WINDOW + [100.0] * WINDOW) is None
    assert not watched.is_suspicious


def test_the_error_names_step_values_prompts_checkpoint_and_remedies():
    watched = watch()
    # 13 of 20 steps at 9.0 have a mean above log(151,936) / 2 = 5.97.
    assert feed(watched, [1.0] * 40 + [9.0] * 12) is None
    with pytest.raises(TrainingError) as raised:
        watched.observe(52, {"loss": 9.0}, SAMPLES)
    message = str(raised.value)
    assert "sft, step 52: training has diverged. The mean loss of the last 20 steps is 6.2 and was 1 at best" in message
    assert "expected at most 5.966" in message
    assert "prompts are prompt1, prompt2" in message
    assert "Of the checkpoints none was good so far" in message
    assert "sft.learning_rate" in message


def test_doubt_lasts_as_long_as_the_last_step_is_above_the_limit():
    watched = watch()
    seen = []
    for loss in [*[1.0] * 30, 9.0, 9.0, 1.0]:
        watched.observe(0, {"loss": loss}, SAMPLES)
        seen.append(watched.is_suspicious)
    assert seen == [False] * 30 + [True, True, False]


def test_a_restart_forgets_nothing():
    losses = learning(100) + [9.0] * WINDOW
    whole = feed(watch(), losses)
    for cut in (5, 60, 104):
        first = watch()
        assert feed(first, losses[:cut]) is None
        second = watch()
        second.restore(json.loads(json.dumps(first.state())))
        assert feed(second, losses[cut:]) == whole - cut


def test_prompts_of_a_large_batch_are_cut_short():
    samples = [Sample([1], [False], f"p{number}") for number in range(20)]
    assert named_prompts(samples).endswith("p13, p14, p15 and 12 more")


def test_the_lowest_loss_is_the_best_and_the_first_of_equal_ones():
    best = BestValidation(None)
    seen = [best.observe(step, loss) for step, loss in enumerate([3.0, 2.0, 2.5, 2.0, 1.0, math.nan], start=1)]
    assert seen == [True, True, False, False, True, False]
    assert (best.step, best.loss) == (5, 1.0)
    assert not best.is_exhausted


@pytest.mark.parametrize(
    ("losses", "exhausted"),
    [
        ([2.0, 2.0, 3.0], [False, False, True]),
        ([math.nan, math.nan], [False, True]),
        ([2.0, math.nan, math.nan], [False, False, True]),
        ([2.0, 3.0, 1.0, 3.0], [False] * 4),
    ],
)
def test_patience_runs_out_after_so_many_validations_without_a_lower_loss(losses: list[float], exhausted: list[bool]):
    best, seen = BestValidation(2), []
    for step, loss in enumerate(losses):
        # Neither is forgotten when a training goes on after a restart.
        before, best = best, BestValidation(2)
        best.restore(before.state())
        best.observe(step, loss)
        seen.append(best.is_exhausted)
    assert seen == exhausted
