"""Converts distillation on given answers (roll/pipeline/distill/distill_config.py) into on-policy distillation."""

from typing import Final

from stillhouse.interop.mapping import Approximated, ConfigMapper, section
from stillhouse.types import JsonObject

_GIVEN: Final = Approximated(
    "ROLL compares both models on the answers of its data; here the student samples and the same divergence is taken "
    "on its own tokens"
)
_LABELS: Final = Approximated(
    "the share of the loss on the data's own answers is left out: set sft.enabled to learn them"
)
_COLUMNS: Final = "rows are read from `prompt` or `messages`: rename the column"
_HAS_TOP_K: Final = ("forward_kl", "reverse_kl")
_KINDS: Final = (*_HAS_TOP_K, "skewed_forward_kl", "skewed_reverse_kl", "jsd")
_TOP_K: Final = 64


def is_distill(body: JsonObject) -> bool:
    return bool(body.keys() & {"student_pretrain", "kd_objective", "distill_loss_weight"})


def map_distill(body: JsonObject, mapper: ConfigMapper) -> None:
    """Map the divergence, and rename the sections in `body` to those of on-policy distillation."""
    objective = str(body.pop("kd_objective", "forward_kl"))
    top_k = body.pop("logits_topk", _TOP_K)
    kind = "jsd" if objective == "js_divergence" else objective
    mapper.skip(_GIVEN, "kd_objective", objective)
    if kind not in _KINDS:
        mapper.skip(Approximated("a forward KL in place of a mixture that adapts"), "kd_objective", objective)
        kind = "forward_kl"
    term: JsonObject = {"kind": kind}
    if kind in _HAS_TOP_K and top_k:
        term["top_k"] = top_k
    if kind.startswith("skewed") and (skew := body.pop("skew_lambda", None)) is not None:
        term["skew"] = skew
    mapper.set("on_policy.divergence", [term], "kd_objective", objective)
    for key, reason in (
        ("distill_loss_weight", _LABELS),
        ("distill_on_prompt", "prompts are read and never learnt"),
        ("logits_transfer_backend", "teacher and student are in one process"),
        ("question_key", _COLUMNS),
        ("answer_key", _COLUMNS),
    ):
        if (value := body.pop(key, None)) not in (None, False):
            mapper.skip(reason, key, value)
    body["is_pure_opd"] = True
    for name, worker in (("student", "student_train"), ("teacher", "teacher")):
        arguments, model = section(body, name, "model_args"), body.pop(f"{name}_pretrain", None)
        if arguments.get("model_name_or_path") is None:
            arguments = {**arguments, "model_name_or_path": model}
        body[worker] = {**section(body, name), "model_args": arguments}
    body.pop("student", None)
