"""Rules for every line of the code, read from the code itself."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for package in ("flows", "tasks", "stillhouse", "deployments") for path in (ROOT / package).rglob("*.py")]
# Each of them runs code that a file holds.
UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# Loads the two models that are shipped, and one that it has just made.
BUILDS_MODELS = ROOT / "stillhouse" / "embedded" / "build.py"
# The ends of names of those that read weights, and of those that read settings alone.
READS_WEIGHTS = ("ForCausalLM",)
READS_SETTINGS = ("AutoTokenizer", "AutoConfig")


@cache
def _nodes() -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path in FILES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def _calls(*names: str) -> list[tuple[str, str]]:
    """Return the calls whose written name ends with one of `names`, and where they are."""
    # Only these are written out, which takes longer than the parsing.
    last_words = {name.rpartition(".")[2] for name in names}
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node))
        for path, node in _nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in last_words
        and ast.unparse(node.func).endswith(names)
    ]


def test_nothing_is_read_or_written_as_a_pickle() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in _nodes()
        if (isinstance(node, ast.Import) and {name.name.split(".")[0] for name in node.names} & UNSAFE_MODULES)
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES)
    ]
    assert found == []
    assert [where for where, call in _calls("np.load", "numpy.load") if "allow_pickle" in call] == []


def test_torch_reads_tensors_alone() -> None:
    calls = _calls("torch.load")
    assert calls
    assert [where for where, call in calls if "weights_only=True" not in call] == []


def test_yaml_makes_no_objects() -> None:
    calls = _calls("yaml.load", "yaml.unsafe_load", "yaml.full_load")
    assert [where for where, call in calls if call != "yaml.load(text, Loader=_Loader)"] == []
    for where, _ in calls:
        assert "class _Loader(yaml.SafeLoader)" in (ROOT / where.split(":")[0]).read_text(encoding="utf-8")


@pytest.mark.parametrize(("readers", "settings"), [(READS_WEIGHTS, "**SAFE_WEIGHTS"), (READS_SETTINGS, "**NO_CODE")])
def test_models_of_others_are_read_without_their_code_and_from_safetensors(
    readers: tuple[str, ...], settings: str
) -> None:
    calls = [
        (where, call)
        for where, call in _calls(*(f"{name}.from_pretrained" for name in readers))
        if not where.startswith(str(BUILDS_MODELS.relative_to(ROOT)))
    ]
    assert calls
    assert [where for where, call in calls if settings not in call] == []


def test_code_of_a_model_is_trusted_nowhere() -> None:
    trusting = [
        f"{path.relative_to(ROOT)}:{node.value.lineno}"
        for path, node in _nodes()
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code" and ast.unparse(node.value) != "False"
    ]
    assert trusting == []
    texts = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "deployments").rglob("*.yaml")]
    assert [path for path in texts if "trust" + "_remote_code" in path.read_text(encoding="utf-8")] == []


def test_adapters_are_attached_after_a_look_at_their_weights() -> None:
    attaching = [where for where, _ in _calls("PeftModel.from_pretrained", ".load_adapter")]
    files = {where.split(":")[0] for where in attaching}
    assert files
    assert [name for name in files if "require_safetensors(" not in (ROOT / name).read_text(encoding="utf-8")] == []


def test_nothing_listens_on_every_address() -> None:
    anywhere = ".".join("0000")
    made_here = [*FILES, ROOT / "Makefile", *(ROOT / "configs").rglob("*.yaml")]
    assert [path for path in made_here if anywhere in path.read_text(encoding="utf-8")] == []
