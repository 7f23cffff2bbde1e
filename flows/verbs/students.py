"""Verbs for trained students: hand them on, and compare what others made of them."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.verbs.data import Private, Push, Store, require_place
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from stillhouse.store.runs import RunRecord
    from stillhouse.types import JsonObject
    from tasks.certification import Subject


Form = Literal["hf", "vllm", "gguf", "ollama"]
_OF_GGUF = ("gguf", "ollama")
_GGUF_TYPE = "q8_0"
_TABLE_WIDTH = 120
"""Of a certificate's table, whose cells are not to be cut."""
NumPrompts = Annotated[int, typer.Option("-n", "--num-prompts", min=1, help="Held-out prompts to compare on.")]


def publish(
    student: Annotated[
        str, typer.Argument(metavar="STUDENT", help="A student's folder, or a run, as view takes it, for its last one.")
    ] = "latest",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="New folder to write it to.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write weights with the adapter merged in, checked against the adapter.")
    ] = False,
    to: Annotated[
        Form | None,
        typer.Option("--to", help="Write it for this runtime, load it there, and compare it with the student."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--type", help=f"Type of the weights of a GGUF file, such as q4_k_m; else {_GGUF_TYPE}."),
    ] = None,
    num_prompts: NumPrompts = 100,
    push: Push = None,
    private: Private = False,
    license_id: Annotated[
        str | None, typer.Option("--license", help="License for the card, such as apache-2.0; else none is stated.")
    ] = None,
    store: Store = "runs",
) -> None:
    """Write a student, its adapter or merged weights, to a folder with a model card, or push it to the hub."""
    require_place("name where the student goes: a folder by", output, push, private)
    folder, evaluations, run = _find_student(student, store)
    _require_form(folder, output, to, weights, merge=merge)
    from stillhouse.progress.terminal import error_console
    from stillhouse.publishing.gguf import export_gguf, write_modelfile
    from stillhouse.store.hub import hub_client
    from stillhouse.training.results.export import export_student, push_student
    from tasks.certification import ends_of

    subject = None if to is None else _subject(folder, run, num_prompts, store)
    # Asked first: a token that is missing is not to be told after minutes of merging.
    hub = None if push is None else hub_client()
    console = error_console()
    about: dict[str, Any] = {"evaluations": evaluations, "license_id": license_id}
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=None if output is None else output.parent, prefix=".publish-") as scratch:
        written = Path(scratch) / ("student" if output is None else output.name)
        with console.status("merging the adapter into its base" if merge else "writing the student"):
            if to in _OF_GGUF:
                export_gguf(folder, written, weights or _GGUF_TYPE, **about)
                if to == "ollama":
                    write_modelfile(written, ends_of(folder).values())
            else:
                copy: Any = shutil.copyfile if output is not None or to is not None else os.symlink
                export_student(folder, written, merge=merge, copy=copy, **about)
        if subject is not None:
            _certify(subject, written, is_vllm=to == "vllm", writes=True)
        if push is not None and hub is not None:
            with console.status(f"uploading to {push}"):
                address = push_student(written, push, private=private, api=hub)
            typer.echo(address)
        if output is not None:
            written.rename(output)
            typer.echo(output)


def _require_form(folder: Path, output: Path | None, to: Form | None, weights: str | None, *, merge: bool) -> None:
    """Raise ConfigError, or TrainingError for a template that Ollama cannot have, before anything is written."""
    from stillhouse.chat.refs import is_hub_id
    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.publishing.gguf import TYPES, sources_of_llama_cpp
    from stillhouse.publishing.ollama import pieces_of
    from stillhouse.serving.gguf import llama_cpp
    from stillhouse.training.results.adapter import read_adapter

    if output is not None and output.exists():
        raise ConfigError(f"--output {output} is there already; name a folder that is not, or remove it")
    if weights is not None and to not in _OF_GGUF:
        raise ConfigError("--type is of GGUF files; leave it out, or write one with --to gguf")
    if weights not in (None, *TYPES):
        raise ConfigError(f"--type {weights!r}: expected one of {', '.join(TYPES)}")
    if to in _OF_GGUF:
        sources_of_llama_cpp()
        llama_cpp()
    if to == "ollama":
        pieces_of(load_tokenizer(str(folder)))
    adapter = None if to in (None, *_OF_GGUF) or merge else read_adapter(folder)
    if adapter is not None and not adapter.base.startswith("embedded:") and not is_hub_id(adapter.base):
        raise ConfigError(
            f"--to {to}: the base of its adapter is {adapter.base!r}, which is not on the Hugging Face Hub, so that "
            "nobody else could load it; write merged weights with --merge"
        )


def certify(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="A run, as view takes it, for its last student.")],
    form: Annotated[Path, typer.Argument(metavar="FORM", help="A folder of weights, or a GGUF file.")],
    is_vllm: Annotated[bool, typer.Option("--vllm", help="Load a folder by vLLM instead of transformers.")] = False,
    num_prompts: NumPrompts = 100,
    store: Store = "runs",
) -> None:
    """Compare weights made elsewhere with a student: prompts, ends, next tokens, answers; exit 1 if they differ."""
    from tasks.certification import as_folder

    folder, _, run = _find_student(student, store)
    with as_folder(form, folder) as whole:
        _certify(_subject(folder, run, num_prompts, store), whole, is_vllm=is_vllm, writes=False)


def _subject(folder: Path, run: "RunRecord | None", num_prompts: int, store: str) -> "Subject":
    from tasks.certification import Subject

    return Subject.of(folder, run, num_prompts, store)


def _certify(subject: "Subject", form: Path, *, is_vllm: bool, writes: bool) -> None:
    from rich.console import Console

    from stillhouse.progress.terminal import error_console, table
    from tasks.certification import certify

    with error_console().status("comparing it with the student"):
        certificate = certify(subject, form, "vllm" if is_vllm else "transformers")
    Console(width=_TABLE_WIDTH).print(table(*certificate.rows))
    certificate.require()
    if writes:
        certificate.write(form)


def _find_student(name: str, store: str) -> tuple[Path, dict[str, "JsonObject"], "RunRecord | None"]:
    """Return a student's folder, and the run that it is named by, with what that measured by model."""
    from flows.verbs.runs import find_folder
    from stillhouse.store.artifacts import artifact_in
    from stillhouse.store.runs import TRAINED, fetch_run
    from tasks.run.stage import EVALUATION_OF

    root = fetch_run(store, name, lambda stage: stage in (*TRAINED, "prompts") or stage.startswith(EVALUATION_OF))
    folder, run = find_folder(name, root, "student", TRAINED[::-1])
    stages = {} if run is None else run.artifacts
    measured = {
        stage.removeprefix(EVALUATION_OF): artifact_in(Path(uri))
        for stage, uris in stages.items()
        for uri in uris
        if stage.startswith(EVALUATION_OF)
    }
    return folder, {model: artifact.facts for model, artifact in measured.items() if artifact is not None}, run
