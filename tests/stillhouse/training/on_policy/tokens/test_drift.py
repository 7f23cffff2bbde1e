import numpy as np
import pytest

from stillhouse.config import PruneConfig
from stillhouse.training.on_policy.tokens.drift import drift_of


def test_each_drifted_token_lowers_its_own_weight_and_all_later_ones():
    drift = drift_of(np.array([0.9, 0.5, 0.7, 0.1]), PruneConfig(min_overlap=0.7, weight_drop=0.1, base_weight=0.5))
    # Prune-OPD's own weights 1.5, 1.4, 1.4, 1.3 over the first.
    assert drift.weights_N == pytest.approx(np.array([1.5, 1.4, 1.4, 1.3]) / 1.5)
    assert (drift.num_reliable, drift.num_drifted) == (4, 2)


@pytest.mark.parametrize("drop", [0.01, 0.02, 0.05, 0.1, 0.3, 1 / 3, 1 / 7])
def test_a_rollout_is_reliable_until_its_drops_make_up_one(drop: float):
    drift = drift_of(np.zeros(200), PruneConfig(min_overlap=0.7, weight_drop=drop, base_weight=0.0))
    assert drift.num_reliable == np.ceil(round(1 / drop, 6)) - 1
    assert drift.weights_N[drift.num_reliable :] == pytest.approx(0.0, abs=1e-8)
    assert (np.diff(drift.weights_N) <= 0.0).all()


def test_weights_never_rise_and_a_rollout_that_agrees_keeps_them_all():
    overlap = np.random.default_rng(0).random(500)
    drift = drift_of(overlap, PruneConfig(min_overlap=0.3))
    assert (np.diff(drift.weights_N) <= 0.0).all()
    assert drift.weights_N.min() >= 0.5 / 1.5
    assert (drift_of(np.ones(9), PruneConfig(min_overlap=1.0)).weights_N == 1.0).all()


def test_a_rollout_keeps_its_first_token():
    assert drift_of(np.zeros(3), PruneConfig(min_overlap=0.7, weight_drop=1.0)).num_reliable == 1
