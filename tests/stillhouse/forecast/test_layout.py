"""Whether GPUs hold a training, told from files of Qwen3's models that have no weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from stillhouse.config import RuntimeConfig, SftConfig, StudentConfig, load_config, parse_config
from stillhouse.errors import ConfigError
from stillhouse.forecast.layout import check_layout, layout_of
from stillhouse.training.job import TrainJob
from tests.model_files import write_cache

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "recipes" / "multi_gpu.md"
FULL = {"model": "Qwen/Qwen3-8B", "parameters": "full"}
LARGE = {"name": "large", "model": "Qwen/Qwen3-32B"}
SERVED = {**LARGE, "kind": "vllm", "base_url": "http://127.0.0.1:8000/v1"}
TOGETHER = ["runtime.engine=transformers", "runtime.num_processes=8"]
ON_RAY = ["runtime.launcher=ray", "runtime.num_hosts=2"]


@pytest.fixture(autouse=True)
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cache(tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def layout(devices: str, *, student: Any = FULL, runtime: Any = None, sft: Any = None, **on_policy: Any) -> list[str]:
    """Return the lines of a config that trains by SFT where `sft` is given, and else on what the student samples."""
    sections: dict[str, Any] = {"sft": {"enabled": True, **sft}} if sft is not None else {"sft": {"enabled": False}}
    if sft is None:
        steps = {"prompts_per_step": 64, "group_size": 4, "max_tokens": 2048}
        sections["on_policy"] = {"enabled": True, **steps, **on_policy}
    body = {"student": student, "runtime": runtime or {}, "evaluation": {"enabled": False}, **sections}
    return layout_of(parse_config({**body, "teacher": {"model": "Qwen/Qwen3-32B"}}, "test"), devices)


def needed(line: str) -> dict[str, float]:
    """Return the GiB that a line tells, by what they are for."""
    inside = line[line.rindex("(") + 1 : line.rindex(")")]
    return {name: float(size) for name, _, size in (part.rpartition(" ") for part in inside.split(", "))}


@pytest.mark.parametrize(
    ("name", "changes", "devices"),
    [
        ("qwen3_on_policy", [], "1x80GiB"),
        ("openrouter_sft", ["student.model=Qwen/Qwen3-8B"], "1x80GiB"),
        ("two_gpus", [], "2x80GiB"),
        ("eight_gpus", [], "8x80GiB"),
        ("eight_gpus", TOGETHER, "8x80GiB"),
        ("eight_gpus", [*TOGETHER, *ON_RAY], "8x80GiB"),
        ("sft_multi_gpu", [], "8x80GiB"),
    ],
)
def test_each_layout_of_the_guide_fits_and_has_the_estimate_that_the_guide_tells(
    name: str, changes: list[str], devices: str
) -> None:
    lines = layout_of(load_config(CONFIGS / f"{name}.yaml", changes), devices)
    assert lines
    assert not any("to make it fit" in line for line in lines)
    guide = GUIDE.read_text(encoding="utf-8")
    assert [line for line in lines if line not in guide] == []


def test_weights_states_and_teachers_are_shared_by_all_processes_and_what_samples_is_not() -> None:
    def of(num_processes: int, num_hosts: int = 1) -> dict[str, float]:
        counts = {"num_processes": num_processes, "num_hosts": num_hosts}
        (line,) = layout("8x200GiB", runtime={"launcher": "ray", "engine": "transformers", **counts})[:1]
        return needed(line)

    alone, all_eight, two_hosts = of(1), of(8), of(8, 2)
    # 8.19e9 weights in float32, and gradients and two states of each.
    assert alone["student"] == pytest.approx(30.5, abs=0.05)
    assert alone["gradients and states"] == pytest.approx(91.5, abs=0.05)
    for name in ("student", "gradients and states", "teacher Qwen3-32B"):
        assert all_eight[name] == pytest.approx(alone[name] / 8, abs=0.06)
        assert two_hosts[name] == pytest.approx(alone[name] / 16, abs=0.06)
    # All weights in 16 bits, and 256, 32 and 16 caches of 4,096 tokens; a step's memory is free while they are there.
    assert (alone["copy to sample by"], alone["more to sample at most"]) == (15.3, 144.0)
    for of_several, caches in ((all_eight, 18.0), (two_hosts, 9.0)):
        assert of_several["a step"] + of_several["more to sample at most"] == pytest.approx(15.3 + caches, abs=0.11)


def test_a_training_that_cannot_fit_is_refused_with_what_makes_it_fit() -> None:
    with pytest.raises(ConfigError, match="GPU 0") as refusal:
        layout("8x80GiB", sft={})
    told = str(refusal.value)
    assert refusal.value.code == "memory"
    for part in ("sft: 136.5 of 80.0 GiB", "runtime.num_processes to 8", "student.parameters to lora"):
        assert part in told
    assert layout("8x80GiB", sft={}, runtime={"launcher": "torchrun", "num_processes": 8})
    assert layout("8x80GiB", sft={}, student={"model": "Qwen/Qwen3-8B"})


def test_a_teacher_that_does_not_fit_may_be_in_4_bits_or_on_a_server() -> None:
    student = {"model": "Qwen/Qwen3-1.7B"}
    with pytest.raises(ConfigError, match=r"teachers\.dtype to 4bit or on_policy\.teachers\.base_url to a server"):
        layout("1x48GiB", student=student, teachers=[LARGE], max_concurrent=8)
    (small,) = layout("1x48GiB", student=student, teachers=[{**LARGE, "dtype": "4bit"}], max_concurrent=8)
    assert needed(small)["teacher Qwen3-32B"] == pytest.approx(17.9, abs=0.1)
    (served,) = layout("1x48GiB", student=student, teachers=[SERVED], max_concurrent=8)
    assert "teacher" not in served


def test_caches_as_long_as_they_may_get_are_warned_of_and_not_refused() -> None:
    student = {"model": "Qwen/Qwen3-8B"}
    (line,) = layout("1x80GiB", student=student, teachers=[SERVED])
    assert needed(line)["a step"] + needed(line)["more to sample at most"] == pytest.approx(144, abs=0.11)
    assert "on_policy.max_concurrent to 64" in line
    (line,) = layout("1x80GiB", student=student, teachers=[SERVED], max_concurrent=64)
    assert "to make it fit" not in line


@pytest.mark.parametrize(("gib", "is_told"), [(34, True), (36, False)])
def test_what_fits_within_the_error_of_the_estimate_is_told(gib: int, is_told: bool) -> None:
    (line,) = layout(f"1x{gib}GiB", student={"model": "Qwen/Qwen3-8B", "max_length": 24000}, sft={})
    assert ("to make it fit" in line) == is_told


def test_vllm_has_gpus_of_its_own_or_one_in_turn() -> None:
    runtime = {"engine": "vllm", "launcher": "torchrun", "num_processes": 6}
    train, sample = layout("8x80GiB", runtime=runtime)
    assert "GPU 0 to 5 " in train
    assert needed(train).keys() == {"student", "gradients and states", "teacher Qwen3-32B", "a step"}
    assert "GPU 6 to 7 (vLLM" in sample
    first, others = layout("8x80GiB", runtime={**runtime, "num_processes": 8})
    assert "GPU 0 (" in first
    assert needed(first)["vLLM"] == needed(sample)["vLLM"]
    assert "vLLM" not in others
    student = {"model": "Qwen/Qwen3-8B"}
    (in_turn,) = layout("1x80GiB", student=student, runtime={"engine": "vllm"}, teachers=[SERVED])
    assert needed(in_turn).keys() == {"student", "adapter", "vLLM"}
    (at_once,) = layout("1x80GiB", student=student, runtime={"engine": "vllm"}, teachers=[SERVED], max_staleness=1)
    assert needed(at_once).keys() == {"student", "adapter", "vLLM", "a step"}


def test_a_teacher_behind_vllm_that_the_run_starts_has_idle_gpus_before_those_that_sample() -> None:
    teacher = {**LARGE, "kind": "vllm"}
    runtime = {"engine": "vllm", "launcher": "torchrun", "num_processes": 4}
    train, sample, score = layout("8x80GiB", runtime=runtime, teachers=[teacher])
    assert "GPU 0 to 3 " in train
    assert "teacher" not in train
    assert "GPU 4 to 5 (vLLM" in sample
    assert "GPU 6 to 7 " in score
    assert needed(score) == {"vLLM of teacher Qwen3-32B": 37.6}
    train, both = layout("2x80GiB", student={"model": "Qwen/Qwen3-8B"}, runtime={"engine": "vllm"}, teachers=[teacher])
    assert "teacher" not in train
    assert needed(both).keys() == {"vLLM of teacher Qwen3-32B", "vLLM"}


def test_a_plan_for_this_machine_says_that_it_has_no_vllm_for_a_teacher(tmp_path: Path) -> None:
    teachers = [{**LARGE, "kind": "vllm"}]
    body = {
        "student": FULL,
        "sft": {"enabled": False},
        "on_policy": {"enabled": True, "teachers": teachers, "max_concurrent": 8},
        "runtime": {"vllm_python": str(tmp_path / "none")},
    }
    config = parse_config({**body, "teacher": {"model": "Qwen/Qwen3-32B"}}, "test")
    with pytest.raises(ConfigError, match=r"'large'.*base_url"):
        layout_of(config)
    assert layout_of(config, "1x200GiB")


def test_a_teacher_is_on_the_gpu_that_it_names() -> None:
    student, teacher = {"model": "Qwen/Qwen3-8B"}, {**LARGE, "device": "cuda:1"}
    trains, scores = layout("2x80GiB", student=student, teachers=[teacher], max_concurrent=16)
    assert "teacher" not in trains
    assert needed(scores) == {"teacher Qwen3-32B": 61.0}
    with pytest.raises(ConfigError, match="1 GPUs"):
        layout("1x80GiB", student=student, teachers=[teacher])


def test_the_student_before_training_is_a_model_of_its_own_beside_all_weights_and_none_beside_an_adapter() -> None:
    teachers = [{"name": "before", "kind": "base"}]
    (line,) = layout("1x200GiB", teachers=teachers, max_concurrent=8)
    assert needed(line)["teacher before"] == 15.3
    (line,) = layout("1x80GiB", student={"model": "Qwen/Qwen3-8B"}, teachers=teachers, max_concurrent=8)
    assert "teacher" not in line


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_processes = 8"):
        layout("4x80GiB", sft={}, runtime={"launcher": "torchrun", "num_processes": 8})


def test_an_earlier_students_adapter_is_as_large_as_its_base_and_the_smallest_gpu_decides(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-8B"}))
    job = TrainJob(
        method="sft",
        student_ref=str(tmp_path),
        student=StudentConfig(),
        sft=SftConfig(dataset_weight=0.0, sources=({"path": "rows.jsonl"},)),
        work_dir=tmp_path,
        output_dir=tmp_path,
        runtime=RuntimeConfig(launcher="torchrun", num_processes=3),
    )
    ((told, fits),) = check_layout(job, [size << 30 for size in (80, 18, 80)])
    assert "of 18.0 GiB on GPU 0 to 2 (student 5.1, adapter 0.4," in told
    assert not fits


def test_a_model_that_is_not_here_has_no_size_and_nothing_is_guessed() -> None:
    (line,) = layout("1x8GiB", student={"model": "Qwen/Qwen3-235B-A22B"}, sft={})
    assert "unknown" in line
    assert "hf download Qwen/Qwen3-235B-A22B" in line


@pytest.mark.parametrize("devices", ["8", "80GiB", "8x80", "0x80GiB", "8x80GB"])
def test_devices_have_one_form(devices: str) -> None:
    with pytest.raises(ConfigError, match="8x80GiB"):
        layout(devices, sft={})


def test_without_gpus_a_training_of_several_processes_is_told_not_to_be_checked() -> None:
    several = ["runtime.launcher=torchrun", "runtime.num_processes=8", "runtime.training_deployment=run-stage/gpu"]
    (line,) = layout_of(load_config(CONFIGS / "sft_multi_gpu.yaml", several))
    assert "not checked" in line
    assert layout_of(load_config(CONFIGS / "sft_multi_gpu.yaml", [*several, "runtime.device=cpu"])) == []
    assert layout_of(load_config(CONFIGS / "qwen3_on_policy.yaml", several[2:])) == []
