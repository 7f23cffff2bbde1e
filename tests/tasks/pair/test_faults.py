"""Faults of a pair, each of which is found, and the configs of the repository, in which nothing is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.training.pair.finding import PairFinding, verdict_of

Examined = Callable[..., dict[str, PairFinding]]
Faulty = Callable[[str, str], str]

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
HERE = ("demo", "smoke", *(f"on_policy/{path.stem}" for path in sorted((CONFIGS / "on_policy").glob("*.yaml"))))
"""Configs whose models come with Stillhouse."""


def graver(findings: dict[str, PairFinding]) -> dict[str, str]:
    return {name: finding.level for name, finding in findings.items() if finding.level in ("change", "no")}


def show(findings: dict[str, PairFinding]) -> str:
    return "\n".join(map(str, findings.values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_there_is_no_alarm_on_a_config_of_the_repository(examined: Examined, name: str) -> None:
    findings = examined(name)
    assert not graver(findings), show(findings)
    assert verdict_of(findings.values()) == "go"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "fault", "alarms", "says"),
    [
        ("student", "another template", {"teacher: rendering": "change"}, "template: own"),
        ("teacher", "another template", {"teacher: rendering": "change", "teacher: better": "no"}, "chat_template"),
        ("teacher", "shifted", {"teacher: tokens": "no"}, "the ids mean something else"),
        ("teacher", "permuted", {"teacher: tokens": "no"}, "alignment"),
        ("teacher", "no end", {"teacher: ends": "change"}, "SFT"),
        ("student", "no end", {"student: ends": "change"}, "SFT"),
        ("teacher", "noise", {"teacher: better": "no"}, "it is worse"),
    ],
)
def test_a_fault_is_found(
    examined: Examined, faulty: Faulty, part: str, fault: str, alarms: dict[str, str], says: str
) -> None:
    findings = examined(**{f"{part}__model": faulty(part, fault)})
    assert alarms.items() <= graver(findings).items(), show(findings)
    assert any(says in findings[name].detail for name in alarms), show(findings)


@pytest.mark.slow
def test_the_remedy_for_another_template_leaves_no_alarm(examined: Examined, faulty: Faulty) -> None:
    teachers = [{"name": "teacher", "model": "embedded:teacher", "template": "own"}]
    findings = examined(student__model=faulty("student", "another template"), on_policy__teachers=teachers)
    assert not graver({name: found for name, found in findings.items() if name.startswith("teacher")}), show(findings)
    assert "reads its own template" in findings["teacher: rendering"].detail


@pytest.mark.slow
def test_a_weaker_teacher_is_found(examined: Examined) -> None:
    findings = examined(num_prompts=32, student__model="embedded:teacher", teacher__model="embedded:student")
    assert graver(findings) == {"teacher: better": "no"}, show(findings)


@pytest.mark.slow
def test_another_teacher_than_that_of_the_rollouts_is_found(examined: Examined, faulty: Faulty) -> None:
    findings = examined("demo", on_policy__teacher=faulty("teacher", "noise"))
    assert findings["teacher of the rows"].level == "change", show(findings)
    assert "Score with the teacher that wrote the rows" in findings["teacher of the rows"].detail
