"""The objective of a ROLL pipeline: the KL to its teachers, rewards or both, and the form of its loss.

After roll/configs/base_config.py (`_handle_opd_mapping`) and roll/pipeline/*/actor_worker.py (`loss_func`).
"""

from collections.abc import Mapping
from typing import Any, Final

from stillhouse.errors import ConfigError
from stillhouse.interop.mapping import LEARN_FROM_IT, Approximated, ConfigMapper, section, value_at
from stillhouse.interop.roll_agentic import is_agentic, map_agentic, reward_norms
from stillhouse.interop.roll_keys import TEACHER
from stillhouse.sellers import cannot_score
from stillhouse.types import JsonObject

_NOT_READ: Final = "read with is_pure_opd or use_opd only: without either, rewards alone are trained on"
_NO_REWARDS: Final = "rewards do not enter the advantage of pure distillation"
_ESTIMATORS: Final = Approximated(
    "rewards are compared within their group here: grpo, rloo, or reinforce for none of it"
)
_LEAVE_ONE_OUT: Final = Approximated(
    "rewards less the mean of the others of their group here (rloo): G / (G - 1) times what the group's mean leaves"
)
_ALONE: Final = Approximated(
    "a trajectory alone in its group has nothing to be compared with: adv_estimator reinforce takes rewards as they are"
)
_CORRECTED: Final = Approximated(
    "each token is corrected by itself here, by a cap on its ratio or by bounds outside of which it is left out"
)
_LOSSES: Final = {"vanilla": "reinforce", "ppo": "ppo"}
_AGGREGATIONS: Final = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean_token_mean",
    "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-sum-norm": "constant",
}
_NO_TEACHER: Final = (
    "distillation on policy has no teacher here, so that on_policy is off: name a local model in on_policy.teacher"
)
_SHARED: Final = "several teachers have prompts in common: ROLL adds up their KL, here the first of them scores"


def map_objective(body: JsonObject, mapper: ConfigMapper) -> None:
    """Pop from `body` and map the keys that determine the loss; raise ConfigError for two that exclude each other."""
    is_pure, is_mixed = bool(body.pop("is_pure_opd", False)), bool(body.pop("use_opd", False))
    if is_pure and is_mixed:
        raise ConfigError(
            "is_pure_opd and use_opd are both true: the one trains on the teacher's KL alone, the other on rewards and "
            "KL. Leave out one of them"
        )
    # The script of pure distillation sets is_pure_opd itself, and nothing else reads student_train.
    is_pure = not is_mixed and (is_pure or bool(body.get("opsd_mode")) or "student_train" in body)
    has_turns = _map_pipeline(body, mapper)
    norms = reward_norms(body) if has_turns else (body.pop("norm_mean_type", None), body.pop("norm_std_type", None))
    teacher = body.pop("teacher", None)
    if is_pure or is_mixed:
        map_teachers(body.pop("reference", None) if teacher is None else teacher, body, mapper)
    else:
        mapper.set("on_policy.enabled", True, "actor_train")
        mapper.set("on_policy.kl_coef", 0.0, "use_opd", False)
        if teacher is not None:
            mapper.skip(_NOT_READ, "teacher", teacher)
    if not is_pure:
        mapper.set("on_policy.reward_coef", 1.0, "use_opd", is_mixed)
    # ROLL counts batches of rollouts, each of which takes `ppo_epochs` passes.
    steps, passes = body.pop("max_steps", None), body.get("ppo_epochs", 1)
    if steps is not None:
        is_counted = isinstance(steps, int) and isinstance(passes, int)
        mapper.set("on_policy.num_steps", steps * passes if is_counted else steps, "max_steps", steps)
    _map_estimator(body.pop("adv_estimator", None), norms, mapper, is_pure=is_pure, is_agentic=has_turns)
    _map_form(body, mapper, is_agentic=has_turns)
    aggregation = str(body.pop("loss_agg_mode", "seq-mean-token-mean"))
    mapper.set("on_policy.aggregation", _AGGREGATIONS.get(aggregation, aggregation), "loss_agg_mode", aggregation)
    _map_correction(body.pop("train_infer_correction", None), mapper)


def _map_pipeline(body: JsonObject, mapper: ConfigMapper) -> bool:
    """Map the kind of pipeline; return whether trajectories have several turns."""
    pipeline = body.pop("pure_opd_pipeline_type", None)
    if is_agentic(body):
        map_agentic(body, mapper)
        return True
    if pipeline == "agentic":
        mapper.skip("write tools in place of environments, in tools.file", "pure_opd_pipeline_type", pipeline)
        return True
    mapper.set("on_policy.max_turns", 1, "pure_opd_pipeline_type", pipeline)
    if pipeline not in (None, "rlvr"):
        mapper.skip("only text is sampled here", "pure_opd_pipeline_type", pipeline)
    return False


def _map_estimator(
    estimator: Any, norms: tuple[Any, Any], mapper: ConfigMapper, *, is_pure: bool, is_agentic: bool
) -> None:
    """Map how rewards become advantages; the norms of rewards are `group`, `batch` or None for mean and deviation."""
    mean, std = norms
    named = {"adv_estimator": estimator, "norm_mean_type": mean, "norm_std_type": std}
    chosen = None
    if not is_pure and (is_agentic or estimator in (None, "grpo", "reinforce")):
        if mean == "group" and std in ("group", None):
            chosen = "grpo" if std == "group" else "rloo"
        elif mean is None and std is None:
            chosen = "reinforce" if is_agentic else estimator
    if chosen is not None:
        mapper.set("on_policy.adv_estimator", chosen, "adv_estimator", named)
        if chosen == "rloo":
            mapper.skip(_LEAVE_ONE_OUT, "norm_mean_type", mean)
        if is_agentic and estimator not in (None, "grpo", "reinforce"):
            mapper.skip(_ESTIMATORS, "adv_estimator", estimator)
        return
    for name, value in named.items():
        if value is not None:
            mapper.skip(_NO_REWARDS if is_pure else _ESTIMATORS, name, value)


def settle_group(mapper: ConfigMapper) -> None:
    """Take rewards as they are where trajectories have no group to be compared with."""
    is_alone = mapper.get("on_policy.group_size") in (None, 1) and mapper.get("on_policy.reward_coef")
    if is_alone and mapper.get("on_policy.adv_estimator") != "reinforce":
        mapper.skip(_ALONE, "adv_estimator", mapper.get("on_policy.adv_estimator"))
        mapper.replace("on_policy.adv_estimator", "reinforce")


def _map_form(body: JsonObject, mapper: ConfigMapper, *, is_agentic: bool) -> None:
    """Map the policy loss and its bounds; those of other losses stay in `body`."""
    variant = str(body.pop("pg_variant", "vanilla" if is_agentic else "ppo"))
    if variant not in _LOSSES:
        mapper.skip(
            "forms offered are importance_sampling, reinforce and ppo; others are losses of your own (on_policy.loss)",
            "pg_variant",
            variant,
        )
        return
    mapper.set("on_policy.loss_fn", _LOSSES[variant], "pg_variant", variant)
    if variant == "ppo":
        bounds = [_number(body, "pg_clip", 0.2)] * 2
        if body.pop("use_pg_clip_range", False):
            bounds = [_number(body, name, 0.2) for name in ("pg_clip_low", "pg_clip_high")]
        mapper.set("on_policy.ppo_clip", bounds, "pg_variant", variant)


def _number(body: JsonObject, key: str, default: float) -> float:
    """Pop a number from the body; other values stay there and become unmapped."""
    if isinstance(body.get(key, default), int | float):
        return float(body.pop(key, default))
    return default


def _map_correction(correction: Any, mapper: ConfigMapper) -> None:
    """Map importance weights and filters by token; those by sequence are unmapped."""
    weight = section(correction, "is_weight") if isinstance(correction, dict) else {}
    filters = value_at(correction, "filters") or []
    used = [one for one in filters if isinstance(one, dict) and one.get("enabled")]
    is_weighted = bool(weight.get("enabled"))
    by_token = [one for one in used if one.get("agg_type", "token") == "token" and not one.get("diff_enabled")]
    if used and used == by_token[:1]:
        low, high = used[0].get("ratio_low", 0.8), used[0].get("ratio_high", 1.2)
        values = {"correction": "mask", "correction_bounds": [low, high]}
    elif not used and is_weighted and weight.get("weight_type", "token") == "token":
        # It has no lower bound; this is our default.
        values = {"correction": "truncate", "correction_bounds": [0.5, weight.get("upper_bound", 1.2)]}
    else:
        if used or is_weighted or not isinstance(correction, dict | None):
            mapper.skip(_CORRECTED, "train_infer_correction", correction)
        return
    for name, value in values.items():
        mapper.set(f"on_policy.{name}", value, "train_infer_correction", correction)


def map_teachers(teacher: Any, body: JsonObject, mapper: ConfigMapper) -> None:
    """Map the teachers and whether on_policy can run.

    `teacher` is one worker, workers by name, or None; hints for the teacher (`opsd_...`) are popped from `body`.
    """
    is_one = isinstance(teacher, dict) and "model_args" in teacher
    workers = _by_name({"teacher": teacher} if is_one else teacher)
    models = {name: worker["model_args"]["model_name_or_path"] for name, worker in workers.items()}
    hint = None
    if body.pop("opsd_mode", False):
        hint = f"Reference solution:\n{{{{ {body.pop('opsd_solution_key', 'reference_solution')} }}}}"
    if not models:
        _map_no_teacher(teacher, body, mapper)
        return
    for name, worker in workers.items():
        prefix = "teacher." if is_one else f"teacher.{name}."
        mapper.apply(worker, {f"{prefix}{key}": rule for key, rule in TEACHER.items()}, prefix)
    mapper.set("teacher.model", next(iter(models.values())), "teacher", models)
    refusals = [reason for model in models.values() if (reason := cannot_score(model)) is not None]
    mapper.set("on_policy.enabled", not refusals, "teacher", models)
    if refusals:
        mapper.set("sft.enabled", True, "teacher", models)
        mapper.skip(f"{refusals[0]}. {LEARN_FROM_IT}", "teacher", models)
    elif is_one and not teacher.get("tag_included") and hint is None:
        if (coef := teacher.get("opd_kl_coef")) is not None:
            mapper.set("on_policy.kl_coef", coef, "teacher.opd_kl_coef", coef)
    else:
        student = _student(body).get("model_name_or_path", body.get("pretrain"))
        entries = [_entry(name, worker, hint, student) for name, worker in workers.items()]
        mapper.set("on_policy.teachers", entries, "teacher", models)
        routes = [entry["routes"] for entry in entries]
        listed = [tag for tags in routes for tag in tags]
        # A prompt without a teacher has no KL; one with several teachers has one of them here.
        if all(routes):
            mapper.set("on_policy.unrouted", "no_kl", "teacher", routes)
        if len(set(listed)) < len(listed) or (len(routes) > 1 and not all(routes)):
            mapper.skip(_SHARED, "teacher", routes)


def _by_name(workers: Any) -> dict[str, JsonObject]:
    """Return the workers that name a model; an unresolved reference does not."""
    return {
        str(name): worker
        for name, worker in (workers.items() if isinstance(workers, dict) else ())
        if isinstance(model := section(workers, name, "model_args").get("model_name_or_path"), str)
        and "${" not in model
    }


def _student(body: Mapping[str, Any]) -> JsonObject:
    return section(body, "student_train" if "student_train" in body else "actor_train", "model_args")


def _map_no_teacher(teacher: Any, body: Mapping[str, Any], mapper: ConfigMapper) -> None:
    """Map a pipeline that names no teacher: a student with an adapter has its base model as one."""
    is_itself = teacher is None and bool(_student(body).get("lora_target"))
    mapper.set("on_policy.enabled", is_itself, "teacher", teacher)
    if is_itself:
        mapper.set("on_policy.teachers", [{"name": "base", "kind": "base"}], "teacher", teacher)
    else:
        mapper.skip(_NO_TEACHER, "teacher", teacher)


def _entry(name: str, worker: Mapping[str, Any], hint: str | None, student: Any) -> JsonObject:
    model = worker["model_args"]["model_name_or_path"]
    is_itself = hint is not None and model == student
    entry = {"name": name, "routes": [str(tag) for tag in worker.get("tag_included") or ()]}
    entry |= {"kind": "base"} if is_itself else {"model": model}
    given = {"kl_coef": worker.get("opd_kl_coef"), "hint": hint}
    return entry | {key: value for key, value in given.items() if value is not None}
