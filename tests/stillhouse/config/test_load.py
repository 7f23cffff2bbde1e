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
        ("rollouts.max_prompts=1e3", 1000),
        ("rollouts.extra_body={min_p: 1e-5}", {"min_p": 1e-5}),
        ("teacher.model='1e5'", "1e5"),
        ("teacher.model=nan", "nan"),
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
        ("sft: {optimiser: muon}", [], ["sft.optimiser", "'sft.trainer.optimizer'?"]),
        ("sft: {temperature: 1}", [], ["sft.temperature", "'soft_temperature'?"]),
        ("tools: {mcp: [{nmae: a}]}", [], ["tools.mcp.0.nmae", "did you mean 'name'?"]),
        ("on_policy: {teachers: [{zzz: 1}]}", [], ["on_policy.teachers.0.zzz", "known keys here", "kl_coef"]),
        ("sft: {zzz: 0.1}", [], ["sft.zzz", "known keys here", "batch_size"]),
        ("teachr: {}", [], ["teachr", "did you mean 'teacher'?"]),
        (
            "student: {chat_template_kwargs: {style: [1]}}",
            [],
            ["student.chat_template_kwargs.style = [1]: expected true or false or a whole number or a number or text"],
        ),
        ("student: {chat_template_kwargs: {tools: 1}}", [], ["'tools': is given by whoever renders the template"]),
        ("student: {chat_template_kwargs: {enable_thinking: 'false'}}", [], ["'enable_thinking' = 'false'", "quotes"]),
        ("student: {chat_template_kwargs: {a b: 1}}", [], ["'a b': expected the name of a variable of the template"]),
        (
            "teacher: {usd_per_million_tokens: {input: 1}}",
            [],
            ["teacher.usd_per_million_tokens.input = 'input': expected 'prompt', 'completion', 'cached_prompt'"],
        ),
        ("prompts: {sources: [a.jsonl]}", [], ["prompts.sources", "expected a mapping"]),
        ("on_policy: {mixture: [{source: a}]}", [], ["on_policy.mixture", "expected a mapping"]),
        ("promotion: {no_worse: [{metric: reward}]}", [], ["promotion.no_worse", "expected a mapping"]),
        ("teacher:\n  base_url: ${URL}", [], ["teacher.base_url = '${URL}'", "http"]),
        ("on_policy: {engine_url: 'localhost:8000/v1'}", [], ["on_policy.engine_url = 'localhost:8000/v1'", "http"]),
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
        ("sft: {num_epochs: 1}\nsft: {seed: 1}", [], ["not valid YAML", "`sft`", "line 1", "line 2"]),
        ("sft.num_epochs: 2", [], ["sft.num_epochs", "expected num_epochs in the section sft"]),
        ("sft: {learning_rate: .inf}", [], ["sft.learning_rate = inf", "finite"]),
        ("", ["sft.learning_rate=nan"], ["sft.learning_rate = 'nan'", "finite"]),
        ("", ["num_epochs=3"], ["--set 'num_epochs=3'", "section.key=value"]),
        ("", ["sft"], ["--set 'sft'", "section.key=value"]),
        ("sft: 3", ["sft.num_epochs=1"], ["sft is not a section"]),
        (
            "on_policy: {teachers: [{name: a}]}",
            ["on_policy.teachers.0.name=b"],
            ["teachers is a list", "teachers=[...]"],
        ),
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


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("sft: {num_epochs: 0, batch_size: 0}", ["sft.num_epochs", "sft.batch_size"]),
        ("dataset: {filters: {turns: [1, many]}}", ["dataset.filters.turns.1"]),
        (
            "sft: {schedule: linear, keep: best, num_epoch: 1}\ntools: {builtin: [search], timeout_s: 0}\nfoo: 1",
            ["sft.keep", "sft.schedule", "tools.builtin", "tools.timeout_s", "sft.num_epoch", "foo"],
        ),
        ("on_policy: {enabled: true, teachers: [{name: a, kind: snapshot}]}", ["on_policy.teachers.kind"]),
    ],
)
def test_every_mistake_is_reported_at_once(tmp_path: Path, text: str, keys: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text))
    named = [line.split(": ", 1)[1].partition(" ")[0].partition("=")[0] for line in str(caught.value).splitlines()]
    assert sorted(named) == sorted(keys)


def test_a_key_in_a_list_is_not_shown_when_the_list_is_overridden(tmp_path: Path) -> None:
    servers = "tools: {mcp: [{name: a, command: [x, --token, sk-1234567890abcdef]}]}"
    with pytest.raises(ConfigError, match="mcp") as caught:
        load_config(written(tmp_path, servers), ["tools.mcp.a=1"])
    assert "sk-" not in str(caught.value)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_config(tmp_path / "absent.yaml")
