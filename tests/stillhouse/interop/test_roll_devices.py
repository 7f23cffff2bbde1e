"""The devices of ROLL's workers, as processes, hosts and what samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from stillhouse.config import DistillConfig, parse_config
from stillhouse.forecast.layout import layout_of
from stillhouse.progress.state import NoProgress
from stillhouse.prompts import parse_prompts
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.types import JsonObject
from tests.model_files import write_cache

Convert = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]


@pytest.fixture
def placed(roll_body: JsonObject, converted: Convert) -> Convert:
    """Converts the ROLL config with devices for who trains and who samples; None leaves out a key."""

    def run(trains: object, samples: object, **changes: object) -> tuple[DistillConfig, dict[str, JsonObject]]:
        roll_body["student_train"]["device_mapping"] = trains
        roll_body["student_infer"]["device_mapping"] = samples
        return converted("opd.yaml", {**roll_body, **changes})

    return run


@pytest.mark.parametrize(
    ("trains", "samples", "changes", "expected"),
    [
        ("list(range(0,8))", "list(range(0,8))", {}, ("torchrun", 8, 1, "transformers")),
        ("list(range(0,4))", "list(range(4,8))", {}, ("torchrun", 4, 1, "auto")),
        ("list(range(0,16))", "list(range(16,24))", {}, ("ray", 8, 2, "transformers")),
        ("list(range(0,16))", None, {"num_gpus_per_node": 4}, ("ray", 4, 4, "transformers")),
        ([0, 1], "[2, 3]", {}, ("torchrun", 2, 1, "auto")),
        ("list(range(0,2)) + [6, 7]", None, {}, ("torchrun", 4, 1, "auto")),
        ("[0]", "[1]", {}, ("subprocess", 1, 1, "auto")),
        (None, None, {}, ("subprocess", 1, 1, "auto")),
        ("all", None, {}, ("subprocess", 1, 1, "auto")),
    ],
)
def test_the_devices_that_train_are_processes_and_those_left_over_sample(
    placed: Convert, trains: object, samples: object, changes: dict[str, Any], expected: tuple[object, ...]
) -> None:
    runtime = placed(trains, samples, **changes)[0].runtime
    assert (runtime.launcher, runtime.num_processes, runtime.num_hosts, runtime.engine) == expected


def test_what_is_taken_over_is_not_listed_and_what_is_not_is(placed: Convert) -> None:
    _, unmapped = placed("list(range(0,8))", "list(range(0,8))", num_gpus_per_node=8, num_nodes=1)
    listed = {key for key in unmapped if key and key.rpartition(".")[2] in ("device_mapping", "strategy_args")}
    assert listed == {"student_train.strategy_args", "teacher.device_mapping"}
    assert not {"num_nodes", "num_gpus_per_node"} & unmapped.keys()
    _, unmapped = placed("all", "list(range(4,8))")
    assert unmapped.keys() >= {"student_train.device_mapping", "student_infer.device_mapping"}


def test_devices_beyond_those_of_the_stated_hosts_are_told(placed: Convert) -> None:
    config, unmapped = placed("list(range(0,16))", "list(range(0,16))", num_nodes=1, num_gpus_per_node=8)
    assert (config.runtime.num_processes, config.runtime.num_hosts) == (8, 1)
    assert "num_nodes" in unmapped["student_train.device_mapping"]["reason"]


def test_eight_gpus_hold_what_rolls_example_of_8b_from_32b_becomes(
    placed: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cache(tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    lengths = {"rollout_batch_size": 16, "prompt_length": 2048, "response_length": 14336}
    everywhere = "list(range(0,16))"
    config, _ = placed(everywhere, everywhere, num_nodes=1, num_gpus_per_node=8, sequence_length=16384, **lengths)
    (line,) = layout_of(config, "8x80GiB")
    assert "of 80.0 GiB on GPU 0 to 7 " in line
    assert "teacher Qwen3-32B 7.6" in line
    assert "to make it fit" not in line


@pytest.mark.slow
def test_what_rolls_example_becomes_trains_in_two_processes(
    placed: Convert, tmp_path: Path, write: Callable[..., Path]
) -> None:
    rows = [
        {"id": str(number), "prompt": f"Tom has {number} pens and buys 4.", "tag": "deepmath", "ground_truth": "9"}
        for number in range(8)
    ]
    write(tmp_path / "data/math.jsonl", *rows)
    small = {"max_steps": 2, "rollout_batch_size": 4, "num_return_sequences_in_group": 2, "response_length": 16}
    config, _ = placed("list(range(0,2))", "list(range(0,2))", pretrain="embedded:student", **small)
    # The embedded teacher stands for the one of 32B.
    config = parse_config(
        config.model_dump(mode="json", exclude_unset=True) | {"teacher": {"model": "embedded:teacher"}},
        origin="converted",
        overrides=["runtime.device=cpu", "runtime.num_threads=1", "student.dtype=float32"],
    )
    assert (config.runtime.launcher, config.runtime.num_processes) == ("torchrun", 2)
    parsed = parse_prompts(config.prompts)
    write_jsonl(tmp_path / "prompts.jsonl", parsed.prompts)
    write_jsonl(tmp_path / "metadata.jsonl", parsed.metadata.values())
    job = TrainJob(
        method="on_policy",
        student_ref=config.student.model,
        student=config.student,
        on_policy=config.on_policy,
        teacher_ref=config.scoring_teacher,
        prompts_file=tmp_path / "prompts.jsonl",
        metadata_file=tmp_path / "metadata.jsonl",
        runtime=config.runtime,
        work_dir=tmp_path / "work",
        output_dir=tmp_path / "student",
    )
    facts = train(job, NoProgress())
    assert (facts["steps"], facts["num_processes"]) == (2, 2)
    assert facts["final"]["on_policy/grad_norm"] > 0.0


def test_asynchrony_counts_updates_and_is_told_where_the_devices_that_train_sample(placed: Any) -> None:
    apart = placed("list(range(0,4))", "list(range(4,8))", async_generation_ratio=1, ppo_epochs=2)[0]
    assert apart.on_policy.max_staleness == 2
    together, unmapped = placed("list(range(0,8))", "list(range(0,8))", async_generation_ratio=1)
    assert together.on_policy.max_staleness == 0
    assert "async_generation_ratio" in unmapped
