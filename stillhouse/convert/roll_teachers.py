"""Teachers of a ROLL pipeline: one, several that share the prompts by tag, or the student without its adapter."""

from collections.abc import Mapping
from typing import Any, Final

from stillhouse.convert.mapping import ConfigMapper
from stillhouse.convert.roll_keys import TEACHER
from stillhouse.convert.scorers import cannot_score
from stillhouse.types import JsonObject

_NOBODY: Final = (
    "distillation on policy has no teacher here, so that on_policy is off: name a local model in on_policy.teacher"
)
_SHARED: Final = "several teachers have prompts in common: ROLL adds up their KL, here the first of them scores"


def map_teachers(teacher: Any, body: JsonObject, mapper: ConfigMapper) -> None:
    """Maps the section `teacher`, or the one that stands for it, and says whether on_policy can run.

    Args:
        teacher: one worker, or workers by name.
        body: of the config; a student with an adapter needs no teacher.
        mapper: collects what they say.
    """
    is_one = isinstance(teacher, dict) and "model_args" in teacher
    workers = _by_name({"teacher": teacher} if is_one else teacher)
    models = {name: worker["model_args"]["model_name_or_path"] for name, worker in workers.items()}
    if not models:
        _map_base(teacher, body, mapper)
        return
    for name, worker in workers.items():
        prefix = "teacher." if is_one else f"teacher.{name}."
        mapper.apply(worker, {f"{prefix}{key}": rule for key, rule in TEACHER.items()}, prefix)
    mapper.set("teacher.model", next(iter(models.values())), "teacher", models)
    refusals = [reason for model in models.values() if (reason := cannot_score(model)) is not None]
    mapper.set("on_policy.enabled", not refusals, "teacher", models)
    if refusals:
        mapper.set("sft.enabled", True, "teacher", models)
        mapper.leave(refusals[0], "teacher", models)
    elif is_one and not teacher.get("tag_included"):
        if (coef := teacher.get("opd_kl_coef")) is not None:
            mapper.set("on_policy.kl_coef", coef, "teacher.opd_kl_coef", coef)
    else:
        _map_routes(workers, models, mapper)


def _by_name(workers: Any) -> dict[str, JsonObject]:
    """The workers that name a model; a reference to what is not in the file names none."""
    if not isinstance(workers, dict):
        return {}
    return {
        str(name): worker
        for name, worker in workers.items()
        if isinstance(worker, dict)
        and isinstance(worker.get("model_args"), dict)
        and isinstance(model := worker["model_args"].get("model_name_or_path"), str)
        and "${" not in model
    }


def _map_base(teacher: Any, body: JsonObject, mapper: ConfigMapper) -> None:
    student = body.get("student_train")
    arguments = student.get("model_args") if isinstance(student, dict) else None
    is_adapted = isinstance(arguments, dict) and bool(arguments.get("lora_target"))
    mapper.set("on_policy.enabled", is_adapted, "teacher", teacher)
    if is_adapted:
        mapper.set("on_policy.teachers", [{"name": "base", "kind": "base"}], "teacher", teacher)
    else:
        mapper.leave(_NOBODY, "teacher", teacher)


def _map_routes(workers: Mapping[str, JsonObject], models: Mapping[str, str], mapper: ConfigMapper) -> None:
    """Teachers for some tags each; a prompt of another tag has no KL."""
    routes = {name: [str(tag) for tag in worker.get("tag_included") or ()] for name, worker in workers.items()}
    mapper.set(
        "on_policy.teachers",
        [
            {"name": name, "model": models[name], "routes": routes[name]}
            | ({} if worker.get("opd_kl_coef") is None else {"kl_coef": worker["opd_kl_coef"]})
            for name, worker in workers.items()
        ],
        "teacher",
        models,
    )
    listed = [tag for tags in routes.values() for tag in tags]
    if all(routes.values()):
        mapper.set("on_policy.unrouted", "no_kl", "teacher", models)
    if len(set(listed)) < len(listed) or (len(routes) > 1 and not all(routes.values())):
        mapper.leave(_SHARED, "teacher", routes)
