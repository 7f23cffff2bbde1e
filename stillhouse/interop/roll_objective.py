"""What a ROLL pipeline trains on: the KL to a teacher, rewards or both, and the form of its loss.

After roll/configs/base_config.py (`_handle_opd_mapping`) and roll/pipeline/*/actor_worker.py (`loss_func`).
"""

from typing import Any, Final

from stillhouse.errors import ConfigError
from stillhouse.interop.mapping import ConfigMapper
from stillhouse.interop.roll_teachers import map_teachers
from stillhouse.types import JsonObject

_NOT_READ: Final = "read with is_pure_opd or use_opd only: without either, rewards alone are trained on"
_NO_REWARDS: Final = "rewards do not enter the advantage of pure distillation"
_ESTIMATORS: Final = "rewards are compared within their group here: grpo, mean, rloo, or reinforce for none of it"
_CORRECTED: Final = (
    "each token is corrected by itself here, by a cap on its ratio or by bounds outside of which it is left out"
)
_LOSSES: Final = {"vanilla": "reinforce", "ppo": "ppo", "tis": "cispo", "cispo": "cispo"}
_AGGREGATIONS: Final = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean_token_mean",
    "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-sum-norm": "constant",
}


def map_objective(body: JsonObject, mapper: ConfigMapper) -> None:
    """Maps what decides on the loss, and takes it out of `body`.

    Raises:
        ConfigError: both is_pure_opd and use_opd are set.
    """
    is_pure, is_mixed = bool(body.pop("is_pure_opd", False)), bool(body.pop("use_opd", False))
    if is_pure and is_mixed:
        raise ConfigError(
            "is_pure_opd and use_opd are both true: the one trains on the teacher's KL alone, the other on rewards and "
            "KL. Leave out one of them"
        )
    # The script of pure distillation sets is_pure_opd by itself, and nothing else reads student_train.
    is_pure = not is_mixed and (is_pure or bool(body.get("opsd_mode")) or "student_train" in body)
    is_agentic = _map_pipeline(body.pop("pure_opd_pipeline_type", None), mapper)
    teacher = body.pop("teacher", None)
    if is_pure or is_mixed:
        map_teachers(body.pop("reference", None) if teacher is None else teacher, body, mapper)
    else:
        mapper.set("on_policy.enabled", True, "actor_train")
        mapper.set("on_policy.kl_coef", 0.0, "use_opd", False)
        if teacher is not None:
            mapper.leave(_NOT_READ, "teacher", teacher)
    if not is_pure:
        mapper.set("on_policy.reward_coef", 1.0, "use_opd", is_mixed)
    _map_steps(body, mapper)
    _map_estimator(body, mapper, is_pure=is_pure)
    _map_form(body, mapper, is_agentic=is_agentic)
    aggregation = str(body.pop("loss_agg_mode", "seq-mean-token-mean"))
    mapper.set("on_policy.aggregation", _AGGREGATIONS.get(aggregation, aggregation), "loss_agg_mode", aggregation)
    _map_correction(body.pop("train_infer_correction", None), mapper)


def _map_pipeline(pipeline: Any, mapper: ConfigMapper) -> bool:
    """Whether trajectories have several turns."""
    if pipeline == "agentic":
        mapper.set("on_policy.agentic", "on", "pure_opd_pipeline_type", pipeline)
        mapper.leave("write tools in place of environments, in tools.file", "pure_opd_pipeline_type", pipeline)
        return True
    mapper.set("on_policy.max_turns", 1, "pure_opd_pipeline_type", pipeline)
    if pipeline not in (None, "rlvr"):
        mapper.leave("only text is sampled here", "pure_opd_pipeline_type", pipeline)
    return False


def _map_steps(body: JsonObject, mapper: ConfigMapper) -> None:
    """ROLL counts batches of rollouts, each of which it may pass over several times."""
    steps, passes = body.pop("max_steps", None), body.get("ppo_epochs", 1)
    if steps is not None:
        is_counted = isinstance(steps, int) and isinstance(passes, int)
        mapper.set("on_policy.num_steps", steps * passes if is_counted else steps, "max_steps", steps)


def _map_estimator(body: JsonObject, mapper: ConfigMapper, *, is_pure: bool) -> None:
    named = {name: body.pop(name, None) for name in ("adv_estimator", "norm_mean_type", "norm_std_type")}
    estimator, mean, std = named.values()
    ours = None
    if not is_pure and estimator in (None, "grpo", "reinforce"):
        if mean == "group" and std in ("group", None):
            ours = "grpo" if std == "group" else "mean"
        elif mean is None and std is None:
            ours = estimator
    if ours is not None:
        mapper.set("on_policy.adv_estimator", ours, "adv_estimator", named)
        return
    for name, value in named.items():
        if value is not None:
            mapper.leave(_NO_REWARDS if is_pure else _ESTIMATORS, name, value)


def _map_form(body: JsonObject, mapper: ConfigMapper, *, is_agentic: bool) -> None:
    """The form of the policy gradient and its bounds; those of another form stay in `body`."""
    variant = str(body.pop("pg_variant", "vanilla" if is_agentic else "ppo"))
    if variant not in _LOSSES:
        mapper.leave("forms offered are importance_sampling, reinforce, ppo and cispo", "pg_variant", variant)
        return
    mapper.set("on_policy.loss_fn", _LOSSES[variant], "pg_variant", variant)
    bounds: dict[str, float] = {}
    if variant == "ppo":
        clip = _number(body, "pg_clip", 0.2)
        bounds = {"ppo_clip_low": clip, "ppo_clip_high": clip}
        if body.pop("use_pg_clip_range", False):
            bounds = {
                "ppo_clip_low": _number(body, "pg_clip_low", 0.2),
                "ppo_clip_high": _number(body, "pg_clip_high", 0.2),
            }
        if body.pop("dual_clip_loss", False):
            bounds["ppo_dual_clip"] = 1.0 + 2.0 * clip
    elif variant == "tis":
        bounds = {
            "cispo_min": _number(body, "tis_lower_bound", 0.0),
            "cispo_max": _number(body, "tis_upper_bound", 1.0),
        }
    elif variant == "cispo":
        low, high = _number(body, "cispo_epsilon_low", 0.1), _number(body, "cispo_epsilon_high", 0.1)
        bounds = {"cispo_min": 1.0 - low, "cispo_max": 1.0 + high}
    for name, value in bounds.items():
        mapper.set(f"on_policy.{name}", value, "pg_variant", variant)


def _number(body: JsonObject, key: str, default: float) -> float:
    """Takes a number out of the body; what is none stays there, to be listed."""
    if isinstance(body.get(key, default), int | float):
        return float(body.pop(key, default))
    return default


def _map_correction(correction: Any, mapper: ConfigMapper) -> None:
    """Of weights and filters those that look at each token by itself."""
    if not isinstance(correction, dict):
        if correction is not None:
            mapper.leave(_CORRECTED, "train_infer_correction", correction)
        return
    weight, filters = correction.get("is_weight") or {}, correction.get("filters") or []
    used = [one for one in filters if isinstance(one, dict) and one.get("enabled")]
    is_weighted = isinstance(weight, dict) and bool(weight.get("enabled"))
    by_token = [one for one in used if one.get("agg_type", "token") == "token" and not one.get("diff_enabled")]
    if used and used == by_token[:1]:
        low, high = used[0].get("ratio_low", 0.8), used[0].get("ratio_high", 1.2)
        values = {"correction": "mask", "correction_min": low, "correction_max": high}
    elif not used and is_weighted and weight.get("weight_type", "token") == "token":
        values = {"correction": "truncate", "correction_max": weight.get("upper_bound", 1.2)}
    else:
        if used or is_weighted:
            mapper.leave(_CORRECTED, "train_infer_correction", correction)
        return
    for name, value in values.items():
        mapper.set(f"on_policy.{name}", value, "train_infer_correction", correction)
