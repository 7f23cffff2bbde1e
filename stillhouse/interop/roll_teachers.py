"""Teachers of a ROLL pipeline: one, several that share the prompts by tag, or the student itself."""

from collections.abc import Mapping
from typing import Any, Final

from stillhouse.config.scorers import cannot_score
from stillhouse.interop.mapping import LEARN_FROM_IT, ConfigMapper
from stillhouse.interop.roll_keys import TEACHER
from stillhouse.types import JsonObject

_NOBODY: Final = (
    "distillation on policy has no teacher here, so that on_policy is off: name a local model in on_policy.teacher"
)
_SHARED: Final = "several teachers have prompts in common: ROLL adds up their KL, here the first of them scores"


def map_teachers(teacher: Any, body: JsonObject, mapper: ConfigMapper) -> None:
    """Maps the section `teacher`, or the one that stands for it, and says whether on_policy can run.

    Args:
        teacher: one worker, or workers by name; None where there is no such section.
        body: of the config, from which what hints the teacher (`opsd_...`) is taken.
        mapper: collects what they say.
    """
    is_one = isinstance(teacher, dict) and "model_args" in teacher
    workers = _by_name({"teacher": teacher} if is_one else teacher)
    models = {name: worker["model_args"]["model_name_or_path"] for name, worker in workers.items()}
    hint = _hint(body)
    if not models:
        _map_nobody(teacher, body, mapper)
        return
    for name, worker in workers.items():
        prefix = "teacher." if is_one else f"teacher.{name}."
        mapper.apply(worker, {f"{prefix}{key}": rule for key, rule in TEACHER.items()}, prefix)
    mapper.set("teacher.model", next(iter(models.values())), "teacher", models)
    refusals = [reason for model in models.values() if (reason := cannot_score(model)) is not None]
    mapper.set("on_policy.enabled", not refusals, "teacher", models)
    if refusals:
        mapper.set("sft.enabled", True, "teacher", models)
        mapper.leave(f"{refusals[0]}. {LEARN_FROM_IT}", "teacher", models)
    elif is_one and not teacher.get("tag_included") and hint is None:
        if (coef := teacher.get("opd_kl_coef")) is not None:
            mapper.set("on_policy.kl_coef", coef, "teacher.opd_kl_coef", coef)
    else:
        student = _student(body).get("model_name_or_path", body.get("pretrain"))
        entries = [_entry(name, worker, hint, student) for name, worker in workers.items()]
        mapper.set("on_policy.teachers", entries, "teacher", models)
        _map_routes([entry["routes"] for entry in entries], mapper)


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


def _student(body: Mapping[str, Any]) -> JsonObject:
    worker = body.get("student_train", body.get("actor_train"))
    arguments = worker.get("model_args") if isinstance(worker, dict) else None
    return arguments if isinstance(arguments, dict) else {}


def _hint(body: JsonObject) -> str | None:
    """What the teacher of self-distillation reads beside the prompt."""
    if not body.pop("opsd_mode", False):
        return None
    key = str(body.pop("opsd_solution_key", "reference_solution"))
    return f"Reference solution:\n{{{{ {key} }}}}"


def _map_nobody(teacher: Any, body: Mapping[str, Any], mapper: ConfigMapper) -> None:
    """Without a section `teacher`, a student with an adapter is its own teacher without it."""
    is_itself = teacher is None and bool(_student(body).get("lora_target"))
    mapper.set("on_policy.enabled", is_itself, "teacher", teacher)
    if is_itself:
        mapper.set("on_policy.teachers", [{"name": "base", "kind": "base"}], "teacher", teacher)
    else:
        mapper.leave(_NOBODY, "teacher", teacher)


def _entry(name: str, worker: Mapping[str, Any], hint: str | None, student: Any) -> JsonObject:
    model = worker["model_args"]["model_name_or_path"]
    is_itself = hint is not None and model == student
    entry = {"name": name, "routes": [str(tag) for tag in worker.get("tag_included") or ()]}
    entry |= {"kind": "base"} if is_itself else {"model": model}
    given = {"kl_coef": worker.get("opd_kl_coef"), "hint": hint}
    return entry | {key: value for key, value in given.items() if value is not None}


def _map_routes(routes: list[list[str]], mapper: ConfigMapper) -> None:
    """A prompt that no teacher is for has no KL; one that several are for has one of them here."""
    listed = [tag for tags in routes for tag in tags]
    if all(routes):
        mapper.set("on_policy.unrouted", "no_kl", "teacher", routes)
    if len(set(listed)) < len(listed) or (len(routes) > 1 and not all(routes)):
        mapper.leave(_SHARED, "teacher", routes)
