"""Fewer tokens in trainings of the embedded student."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.passes import Passes
from stillhouse.training.model.microbatches import num_targets
from stillhouse.training.on_policy.batches.batch import read_batch
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.ranks import Ranks
from stillhouse.types import PromptMetadata

NewMethod = Callable[..., OnPolicy]

_SHORT = {"max_tokens": 12, "max_turns": 2, "learning_rate": 1e-3, "temperature": 1.5}
_PRUNE: dict[str, Any] = {"min_overlap": 0.5, "top_k": 4, "weight_drop": 0.25}
_EXACT: dict[str, Any] = {"divergence": [{"kind": "reverse_kl"}]}


def batch_of(method: OnPolicy) -> tuple[list[ScoredSample], dict[str, float]]:
    batch = method.batch(0)
    return [sample for sample in batch.samples if isinstance(sample, ScoredSample)], batch.metrics


def final_of(method: OnPolicy) -> dict[str, float]:
    work_dir = method._checkpoints.parent
    trainer = build_trainer(method, method._student, method._config, work_dir=work_dir, identity={}, peak_tflops=1.0)
    final: dict[str, float] = trainer.run()["final"]
    return final


def _weights(sample: ScoredSample) -> np.ndarray:
    assert sample.token_weights is not None
    return np.compress(sample.loss_mask, sample.token_weights)


@pytest.mark.parametrize("exact", [{}, _EXACT], ids=["sampled", "exact"])
def test_rollouts_are_cut_and_weighted_by_their_drift(new_method: NewMethod, exact: dict[str, Any]):
    whole, _ = batch_of(new_method(**_SHORT, **exact))
    pruned, metrics = batch_of(new_method(prune=_PRUNE, **_SHORT, **exact))
    for sample, before in zip(pruned, whole, strict=True):
        assert sample.token_ids == before.token_ids[: len(sample.token_ids)]
        assert sample.loss_mask == before.loss_mask[: len(sample.token_ids)]
        assert (np.diff(_weights(sample)) <= 0.0).all()
        assert len(sample.sampling_logprobs or []) == len(sample.token_ids)
    saved = num_targets(whole) - num_targets(pruned)
    assert metrics["pruned_tokens"] == saved > 0
    assert metrics["pruned_share"] == np.mean(
        [len(one.token_ids) < len(other.token_ids) for one, other in zip(pruned, whole, strict=True)]
    )
    assert metrics["learnt_tokens"] == num_targets(pruned) / len(pruned)
    assert 0.0 < metrics["top_k_overlap"] < 1.0
    assert 0.0 < metrics["drifted_token_share"] < 1.0


def test_without_the_cut_only_weights_fall(new_method: NewMethod):
    whole, _ = batch_of(new_method(**_SHORT))
    kept, metrics = batch_of(new_method(prune={**_PRUNE, "cut": False}, **_SHORT))
    assert [sample.token_ids for sample in kept] == [sample.token_ids for sample in whole]
    assert min(_weights(sample).min() for sample in kept) == pytest.approx(1 / 3)
    assert metrics["pruned_tokens"] == 0.0


@pytest.mark.parametrize("exact", [{}, _EXACT], ids=["sampled", "exact"])
@pytest.mark.parametrize("kind", [{"kind": "ema"}, {"kind": "snapshot", "refresh_every_steps": 1}])
def test_a_student_never_drifts_from_itself(new_method: NewMethod, kind: dict[str, Any], exact: dict[str, Any]):
    settings = {"ema_decay": 0.5, "prune": {**_PRUNE, "min_overlap": 1.0}, **_SHORT, **exact}
    _, metrics = batch_of(new_method(teachers=[{"name": "self", **kind}], **settings))
    assert metrics["top_k_overlap"] == 1.0
    assert metrics["pruned_tokens"] == metrics["drifted_token_share"] == 0.0


@pytest.mark.parametrize("by", ["entropy", "soft_or"])
def test_half_of_the_tokens_of_each_trajectory_bear_the_loss(new_method: NewMethod, by: str):
    whole, _ = batch_of(new_method(**_SHORT))
    method = new_method(token_weights={"by": by}, **_SHORT)
    chosen, metrics = batch_of(method)
    counts = [
        (sum(sample.loss_mask), -(-sum(other.loss_mask) // 2)) for sample, other in zip(chosen, whole, strict=True)
    ]
    assert all(seen == expected for seen, expected in counts)
    assert metrics["unchosen_tokens"] == num_targets(whole) - num_targets(chosen)
    # What was sampled is counted, whatever is learnt of it.
    assert method.batch(0).num_sampled_tokens == num_targets(whole)


def test_tokens_are_chosen_by_the_whole_distribution_where_the_loss_compares_it(new_method: NewMethod):
    method = new_method(token_weights={"by": "soft_or"}, **_SHORT, **_EXACT)
    chosen, metrics = batch_of(method)
    assert metrics["unchosen_tokens"] > 0
    assert all(sample.teacher_logprobs is None and sample.teacher_top is None for sample in chosen), "nothing is scored"


@pytest.mark.parametrize("exact", [{}, _EXACT], ids=["sampled", "exact"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean"])
def test_the_gradient_does_not_depend_on_the_split_into_microbatches(
    new_method: NewMethod, exact: dict[str, Any], aggregation: str
):
    settings = {"prune": _PRUNE, "token_weights": {"by": "soft_or"}, "aggregation": aggregation, **_SHORT, **exact}
    gradients = []
    for max_tokens, packing in ((4096, True), (100, True), (1, False)):
        method = new_method(microbatch_tokens=max_tokens, packing=packing, **settings)
        passes = Passes(method._student, Ranks.single(torch.device("cpu")), method._config)
        passes.backward(method.batch(0).samples, method)
        parameters = [parameter for _, parameter in method._student.trained_parameters()]
        gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-3, atol=1e-5)
    assert gradients[0].norm() > 0.0


def test_the_choice_is_made_once_a_batch_and_kept_with_it(new_method: NewMethod, tmp_path: Path):
    settings = {"prune": _PRUNE, "num_passes": 2, "loss_fn": "ppo", "folder": tmp_path, **_SHORT}
    method = new_method(**settings)
    chosen, _ = batch_of(method)
    assert read_batch(tmp_path / "rollouts" / "batch-00000000.parquet").parts == [chosen]
    with torch.no_grad():
        method._student.head.weight.zero_()
    assert method.batch(1).samples == chosen
    assert new_method(**settings).batch(1).samples == chosen


def test_the_window_follows_where_rollouts_drift(new_method: NewMethod, tmp_path: Path):
    prune = {"min_overlap": 0.01, "weight_drop": 0.01, "window": 4, "window_step": 3}
    settings = {"prune": prune, "num_steps": 3, "folder": tmp_path, **_SHORT}
    method = new_method(**settings)
    sizes = []
    for step in range(3):
        if step == 2:
            method = new_method(**settings)
        batch = method.batch(step)
        assert batch.metrics["mean_completion_tokens"] <= batch.metrics["window_tokens"]
        sizes.append((batch.metrics["window_tokens"], batch.metrics["window_hit_share"] >= 0.1))
    assert sizes == [(4.0, True), (7.0, True), (10.0, sizes[2][1])]


def test_a_prompt_without_a_teacher_is_neither_weighted_nor_cut(
    new_method: NewMethod, metadata: dict[str, PromptMetadata]
):
    tags = {key: replace(entry, tag="ab"[number % 2]) for number, (key, entry) in enumerate(metadata.items())}
    teacher = {"name": "one", "model": "embedded:teacher", "routes": ["a"]}
    method = new_method(
        answers=tags,
        teachers=[teacher],
        unrouted="no_kl",
        reward_coef=1.0,
        group_size=2,
        num_steps=1,
        prune=_PRUNE,
        **_SHORT,
    )
    samples, _ = batch_of(method)
    assert {(sample.tag, sample.token_weights is None) for sample in samples} == {("a", False), ("b", True)}
    assert np.isfinite(final_of(method)["on_policy/grad_norm"])


def test_a_servers_best_tokens_prune_and_choose_as_a_local_teachers_do(
    new_method: NewMethod, serve: Callable[[str, str], str]
):
    far = {"name": "t", "kind": "vllm", "model": "big", "base_url": serve("embedded:teacher", "big"), "top_k": 16}
    near = {"name": "t", "model": "embedded:teacher"}
    settings = {"prune": _PRUNE, "token_weights": {"by": "soft_or"}, **_SHORT, "temperature": 1.0}
    local, served = (batch_of(new_method(teachers=[teacher], **settings)) for teacher in (near, far))
    assert [sample.loss_mask for sample in served[0]] == [sample.loss_mask for sample in local[0]]
    for name in ("top_k_overlap", "pruned_tokens"):
        assert served[1][name] == pytest.approx(local[1][name], rel=1e-6)
