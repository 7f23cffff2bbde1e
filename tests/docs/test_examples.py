"""Configs and commands in the guide and the READMEs are ones that work."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from flows.cli import app
from stillhouse.config import DistillConfig, parse_config
from stillhouse.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = "|".join(DistillConfig.model_fields)


def test_every_config_is_valid(blocks: list[Any]) -> None:
    configs = [block for block in blocks if block.language == "yaml" and not block.title]
    assert len(configs) > 20
    problems = []
    for block in configs:
        try:
            parse_config(yaml.safe_load(block.text), origin=block.place)
        except (ConfigError, yaml.YAMLError) as error:
            problems.append(f"{block.place}: {error}")
    assert not problems, "\n".join(problems)


def test_lines_of_a_named_file_stand_in_it(blocks: list[Any]) -> None:
    for block in blocks:
        title = re.search(r'title="([^"]+)"', block.title)
        # The blocks of that page are changes, which a test of its own applies.
        if title is not None and not block.place.startswith("docs/recipes/new_algorithm.md"):
            lines = [line.strip() for line in (ROOT / title[1]).read_text(encoding="utf-8").splitlines()]
            missing = [line for line in block.text.splitlines() if line.strip() and line.strip() not in lines]
            assert not missing, (block.place, missing)


def test_every_command_of_ours_is_understood(pages: dict[str, str]) -> None:
    commands = [(page, line) for page, text in pages.items() for line in commands_in(text, "stillhouse")]
    assert len(commands) > 30
    problems = [f"{page}: {line}: {problem}" for page, line in commands if (problem := wrong_with(line))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("stillhouse distil config.yaml", "there is no verb distil"),
        ("stillhouse distill config.yaml --merge", "No such option"),
        ("stillhouse init new --template other", "is not one of"),
        ("stillhouse convert source", "Missing parameter: output"),
    ],
)
def test_a_wrong_command_is_found(line: str, problem: str) -> None:
    assert problem in (wrong_with(line) or "")


def test_every_target_of_make_is_there(pages: dict[str, str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {line.split()[1] for text in pages.values() for line in commands_in(text, "make")}
    assert named
    assert named <= targets


def test_every_key_on_a_page_is_in_the_config(pages: dict[str, str]) -> None:
    keys = {
        (page, key)
        for page, text in pages.items()
        for key in re.findall(rf"`((?:{SECTIONS})\.[\w.\[\]]+?)(?:: [^`]*)?`", text)
        if not re.search(r"\.(py|yaml|jsonl|parquet)$", key)
    }
    assert len(keys) > 50
    assert not [(page, key) for page, key in keys if not is_key(key)]


def test_every_file_of_the_tree_on_a_page_is_there(pages: dict[str, str]) -> None:
    paths = re.findall(r"\b(?:configs|deployments|examples)/[\w./-]+\.\w+", "\n".join(pages.values()))
    assert paths
    assert not [path for path in paths if not path.startswith("examples/opd") and not (ROOT / path).exists()]


def test_every_module_on_a_page_is_there(pages: dict[str, str]) -> None:
    texts = [*pages.values(), (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    paths = set(re.findall(r"`((?:flows|tasks|stillhouse)/[\w./]*)`", "\n".join(texts)))
    assert len(paths) > 40
    assert not [path for path in paths if not (ROOT / path).exists()]


def commands_in(text: str, program: str) -> list[str]:
    """Return lines of blocks, and code in sentences, that begin with the program; comments are left out."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(rf"^(?: *\$ | *)({program} [a-z][^\n`]*)$", joined, re.M) + re.findall(
        rf"`({program} [a-z][^`\n]*)`", joined
    )
    return [line.split("  #")[0].split(" # ")[0].split("&&")[0].strip() for line in lines]


def wrong_with(line: str) -> str | None:
    """Return why the console script would refuse a command; None if it would not. Nothing is run.

    A verb by itself stands for itself, and placeholders for something that fits.
    """
    verb, *arguments = shlex.split(re.sub(r"\[.*?\]", "", line).replace("FORM", "openai"))[1:]
    group: Any = typer.main.get_command(app)
    command = group.commands.get(verb)
    if command is None:
        return f"there is no verb {verb}"
    try:
        if arguments:
            command.make_context(verb, arguments)
    except Exception as error:
        return str(error)
    return None


def is_key(key: str) -> bool:
    """Return whether a path such as `sft.num_epochs` names a field or a section; lists are passed through."""
    model: Any = DistillConfig
    for part in key.split("."):
        fields = getattr(model, "model_fields", None)
        if fields is None:
            return True  # below a mapping, names are the user's own
        name = part.removesuffix("[]")
        if name not in fields:
            return False
        annotation = fields[name].annotation
        types = (annotation, *getattr(annotation, "__args__", ()))
        model = next((section for section in types if hasattr(section, "model_fields")), None)
    return True
