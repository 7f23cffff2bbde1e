from pathlib import Path

import pytest

from stillhouse.config import DistillConfig, load_config
from stillhouse.errors import ConfigError

FOLDER = Path(__file__).parents[3] / "configs"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_shipped_config_loads_and_begins_by_saying_what_it_shows(path: Path) -> None:
    assert isinstance(load_config(path), DistillConfig)
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("pure", {"reward_coef": 0.0, "kl_coef": 1.0}),
        ("pure_agentic", {"reward_coef": 0.0, "kl_coef": 1.0}),
        ("mixed", {"reward_coef": 1.0, "kl_coef": 0.3, "group_size": 4}),
        ("mixed_agentic", {"reward_coef": 1.0, "kl_coef": 0.3, "updates_per_batch": 2}),
        ("grpo", {"needs_teacher": False, "adv_estimator": "grpo"}),
    ],
)
def test_each_mode_of_on_policy_distillation_has_an_example(name: str, mode: dict[str, object]) -> None:
    config = load_config(FOLDER / "on_policy" / f"{name}.yaml")
    assert {key: getattr(config.on_policy, key) for key in mode} == mode
    assert bool(config.tools.builtin) is (name not in ("pure", "mixed"))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("self_distillation", ["base"]), ("ema", ["ema"]), ("several_teachers", ["local", "local"]), ("exact", [])],
)
def test_each_sort_of_teacher_has_an_example(name: str, kinds: list[str]) -> None:
    on_policy = load_config(FOLDER / "on_policy" / f"{name}.yaml").on_policy
    assert [teacher.kind for teacher in on_policy.teachers] == kinds
    assert bool(on_policy.divergence) is (name == "exact")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")) == DistillConfig()


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("rollouts.num_samples=4", 4),
        ("sft.num_epochs=7", 7),
        ("sft.learning_rate=1e-4", 1e-4),
        ("sft.learning_rate=5.0e-4", 5e-4),
        ("sft.learning_rate=0.1", 0.1),
        ('rollouts.system_prompt="42"', "42"),
        ("teacher.model='1e5'", "1e5"),
        ("rollouts.seed=null", None),
        ("tools.builtin=[calculator]", ("calculator",)),
    ],
)
def test_an_override_replaces_a_value_or_makes_its_section(tmp_path: Path, override: str, value: object) -> None:
    config = load_config(written(tmp_path, "rollouts: {num_samples: 2}"), [override])
    section, field = override.partition("=")[0].split(".")
    assert getattr(getattr(config, section), field) == value


@pytest.mark.parametrize("switch", ["on", "off", "auto"])
def test_a_switch_is_what_it_is_written_as(tmp_path: Path, switch: str) -> None:
    config = load_config(
        written(tmp_path, f"sft: {{trainer: {{compile: {switch}}}}}"), [f"sft.trainer.gradient_checkpointing={switch}"]
    )
    assert (config.sft.trainer.compile, config.sft.trainer.gradient_checkpointing) == (switch, switch)


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("sft: {num_epochs: many}", [], ["config.yaml", "sft.num_epochs", "'many'", "whole number"]),
        ("sft: {learning_rat: 0.1}", [], ["sft.learning_rat", "did you mean 'learning_rate'?"]),
        ("sft: {zzz: 0.1}", [], ["sft.zzz", "known keys here", "batch_size"]),
        ("teachr: {}", [], ["teachr", "did you mean 'teacher'?"]),
        (
            "student: {chat_template_kwargs: {style: [1]}}",
            [],
            ["student.chat_template_kwargs.style = [1]: expected true or false or a whole number or a number or text"],
        ),
        ("student: {chat_template_kwargs: {tools: 1}}", [], ["'tools': is given by whoever renders the template"]),
        ("student: {chat_template_kwargs: {a b: 1}}", [], ["'a b': expected the name of a variable of the template"]),
        (
            "teacher: {usd_per_million_tokens: {input: 1}}",
            [],
            ["teacher.usd_per_million_tokens.input = 'input': expected 'prompt', 'completion' or 'cached_prompt'"],
        ),
        ("prompts: {sources: [a.jsonl]}", [], ["prompts.sources", "expected a mapping of names to addresses"]),
        ("rollouts: {temperature: -1}", [], ["rollouts.temperature = -1", "expected at least 0"]),
        ("student: {parameters: prefix}", [], ["student.parameters", "'full', 'lora' or 'qlora'"]),
        ("student: {parameters: full, merge: true}", [], ["student", "there is no adapter to merge"]),
        ("student: {lora_targets: []}", [], ["student.lora_targets", "expected 1 or more items"]),
        ("tracking: {register_as: a/b}", [], ["tracking.register_as = 'a/b'", "expected text that matches"]),
        ("tracking: {register_as: ''}", [], ["tracking.register_as = ''", "expected text that matches"]),
        ("promotion: {alias: my best}", [], ["promotion.alias = 'my best'", "expected text that matches"]),
        ("promotion: {alias: Latest}", [], ["promotion.alias = 'Latest'", "another version in the registry"]),
        ("sft: {dataset_weight: 0}", [], ["sft", "nothing is left to train on"]),
        ("runtime: {num_processes: 2}", [], ["runtime", "need runtime.launcher `torchrun`"]),
        ("runtime: {task_runner: dask}", [], ["runtime.task_runner = 'dask'", "'local' or 'ray'"]),
        ("runtime: {dask_address: 'tcp://x:8786'}", [], ["runtime.dask_address", "did you mean 'ray_address'?"]),
        ("[1, 2]", [], ["expected sections", "list"]),
        ("a: [", [], ["not valid YAML"]),
        ("", ["num_epochs=3"], ["--set 'num_epochs=3'", "section.key=value"]),
        ("", ["sft"], ["--set 'sft'", "section.key=value"]),
        ("sft: 3", ["sft.num_epochs=1"], ["sft is not a section"]),
        ("on_policy: {mixture: {a: 1.5}}", [], ["on_policy.mixture.a = 1.5: expected a whole number or less than 1"]),
        ("on_policy: {teachers: [{name: a, offload: true}]}", [], ["on_policy.teachers.offload was removed"]),
        ("teacher: {base_url: 'http://x/v1'}\non_policy: {enabled: true}", [], ["on_policy.teacher", "http://x/v1"]),
    ],
)
def test_a_mistake_is_named_with_what_was_expected(
    tmp_path: Path, text: str, overrides: list[str], expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text), overrides)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sft: {learning_rat: 0.1}", "unknown-key"),
        ("[1, 2]", "sections"),
        ("runtime: {num_processes: 2}", "launcher"),
        ("sft: {num_epochs: 0}", "config"),
    ],
)
def test_an_error_has_the_code_of_its_kind(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text))
    assert caught.value.code == code


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, "sft: {num_epochs: 0, batch_size: 0}"))
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        load_config(tmp_path / "absent.yaml")
