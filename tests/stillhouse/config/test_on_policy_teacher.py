from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import OnPolicyTeacher, SftConfig

URL = "http://127.0.0.1:8000/v1"
KINDS: dict[str, dict[str, Any]] = {
    "local": {"model": "m"},
    "base": {},
    "ema": {},
    "vllm": {"model": "m", "base_url": URL},
    "sglang": {"model": "m", "base_url": URL},
    "echo": {"model": "m", "base_url": URL},
}


def teacher(kind: str, **settings: Any) -> OnPolicyTeacher:
    return OnPolicyTeacher.model_validate({"name": "t", "kind": kind, **KINDS[kind], **settings})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_taken_with_what_it_needs_also_when_all_defaults_are_written_out(kind: str) -> None:
    made = teacher(kind)
    assert made.is_local == (made.base_url is None)
    assert made.is_student == (made.model is None)
    assert OnPolicyTeacher.model_validate(made.model_dump(mode="json")) == made


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("vllm", {"base_url": None, "api_key_env": "KEY"}, "api_key_env"),
        ("local", {"model": None}, "`model`"),
        ("vllm", {"model": None}, "`model`"),
        ("base", {"model": "m"}, "`model`"),
        ("ema", {"model": "m"}, "`model`"),
        ("ema", {"device": "cpu"}, "device"),
        ("sglang", {"base_url": None}, "`base_url`"),
        ("local", {"base_url": URL}, "`base_url`"),
        ("local", {"api_key_env": "KEY"}, "api_key_env"),
        ("ema", {"api_key_env": "KEY", "dtype": "4bit"}, "api_key_env, dtype"),
        ("echo", {"device": "cpu", "dtype": "bfloat16"}, "dtype, device"),
        ("echo", {"top_k": 5}, "top_k"),
        ("base", {"template": "own"}, "template"),
        ("local", {"template": "own", "alignment": "bytes"}, "template"),
        ("vllm", {"chat_template_kwargs": {"a": True}}, "chat_template_kwargs"),
    ],
)
def test_what_a_kind_lacks_or_has_no_use_for_is_named(kind: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=f"'t' .*'{kind}' .*{message}"):
        teacher(kind, **settings)


def test_a_model_is_on_this_machine_in_the_process_or_behind_vllm_without_an_address() -> None:
    here = [teacher("local"), teacher("vllm", base_url=None)]
    elsewhere = [teacher(kind) for kind in ("base", "ema", "vllm", "sglang", "echo")]
    assert [one.is_here for one in (*here, *elsewhere)] == [True] * 2 + [False] * 5


def test_values_for_a_template_go_with_the_teachers_own_and_configs_without_one_keep_their_dumps() -> None:
    for settings in ({"template": "own"}, {"alignment": "bytes"}):
        made = teacher("echo", **settings, chat_template_kwargs={"enable_thinking": False})
        assert made.reads_own_template
    assert "template" not in teacher("local").model_dump(mode="json")
    assert not teacher("local").reads_own_template


def test_rows_of_sft_are_scored_as_they_are() -> None:
    near = {"name": "t", "model": "m", "template": "own"}
    with pytest.raises(ValidationError, match=r"sft\.teachers.* template"):
        SftConfig.model_validate({"loss": "kl", "teachers": [near]})
