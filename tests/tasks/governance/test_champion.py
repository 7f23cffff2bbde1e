"""The champion as another machine finds it, on a real MLflow database."""

import shutil
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal

import pytest

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig, PromotionConfig, RuntimeConfig, StudentConfig, TrackingConfig
from stillhouse.errors import ConfigError, StoreError
from stillhouse.store import ArtifactStore
from stillhouse.tracking import start_run
from stillhouse.tracking.client import connect, default_uri
from stillhouse.tracking.registry import StudentVersion
from stillhouse.types import Artifact, Model
from tasks.governance.champion import Registered, candidates, find_champion, start_of_training
from tasks.run.context import Run, RunContext

BASE = Model(name="base", ref="embedded:student", fingerprint="b")
Machine = Callable[..., Run]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of MLflow and of the store of the machine that trained."""
    return tmp_path_factory.mktemp("office")


@pytest.fixture(scope="module")
def student(office: Path) -> Artifact:
    """Return a student in its store, registered as version 1 of `small`, and the champion."""

    def fill(folder: Path) -> tuple[int, dict[str, object]]:
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "config.json").write_text("{}")
        return 0, {}

    artifact = ArtifactStore(office).write("sft", "0123456789abcdef", fill)
    weights = model_identity(artifact.uri).rpartition("@")[2]
    with start_run(TrackingConfig(uri=default_uri(office)), office, "sft") as run:
        run.log_artifacts(Path(artifact.uri), "student")
        run.register("small", "champion", [StudentVersion(weights, run.run_id, "student", {}, "a student")])
    return artifact


@pytest.fixture
def machine(office: Path, tmp_path: Path) -> Machine:
    """Return a run on a machine with a store of its own."""

    def make(
        store: Path = tmp_path / "store",
        *,
        uri: str | None = None,
        parameters: Literal["full", "lora"] = "full",
        **promotion: object,
    ) -> Run:
        tracking = TrackingConfig(uri=uri or default_uri(office), register_as="small")
        config = DistillConfig(
            tracking=tracking,
            student=StudentConfig(parameters=parameters),
            promotion=PromotionConfig(**{"start_from_champion": True, **promotion}),
            runtime=RuntimeConfig(store=str(store)),
        )
        record = start_run(tracking, store, "distill")
        context = RunContext(
            run_id="r", runtime=config.runtime, tracking=tracking, budget=config.budget, mlflow_run_id=record.run_id
        )
        return Run(name="distill", config=config, context=context, record=record)

    return make


def test_the_machine_that_trained_the_champion_has_it(student: Artifact, machine: Machine, office: Path) -> None:
    run = machine(office)
    champion = find_champion(run)
    assert champion is not None
    assert (champion.version, champion.model.ref) == ("1", student.uri)
    assert champion.model.fingerprint == model_identity(student.uri)
    assert start_of_training(BASE, champion, run) is champion.model
    assert start_of_training(BASE, None, run) is BASE
    assert start_of_training(BASE, champion, machine(office, start_from_champion=False, enabled=True)) is BASE


def test_no_adapter_is_trained_on_a_full_champion(student: Artifact, machine: Machine, tmp_path: Path) -> None:
    run = machine(parameters="lora")
    whole = Registered(Model(name="champion", ref=student.uri, fingerprint="w"), "1")
    with pytest.raises(ConfigError, match=r"student\.parameters = 'lora'.*version 1"):
        start_of_training(BASE, whole, run)
    (tmp_path / "adapter_config.json").write_text("{}")
    adapter = Registered(Model(name="champion", ref=str(tmp_path), fingerprint="a"), "1")
    assert start_of_training(BASE, adapter, run) is adapter.model


def test_another_machine_fetches_it_once_as_the_same_model(student: Artifact, machine: Machine, tmp_path: Path) -> None:
    run = machine()
    champion = find_champion(run)
    assert champion is not None
    folder = Path(champion.model.ref)
    assert folder.is_relative_to(tmp_path / "store" / "registered")
    # Evaluations and trainings are found again by it.
    assert champion.model.fingerprint == model_identity(student.uri)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert find_champion(machine()) == champion
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    (folder / "model.safetensors").write_bytes(b"altered")
    assert find_champion(machine()) == champion
    assert (folder / "model.safetensors").read_bytes() == b"weights"


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.slow
def test_without_mlflow_the_last_known_champion_is_taken_also_of_a_store_that_was_moved(
    student: Artifact, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_champion(machine(uri=NOWHERE)) is None
    assert "This store has known no champion: going on without one" in caplog.text
    champion = find_champion(machine())
    assert champion is not None
    assert find_champion(machine(uri=NOWHERE)) == champion
    assert "Taking version 1, the champion known last" in caplog.text
    moved = (tmp_path / "store").rename(tmp_path / "moved")
    known = find_champion(machine(moved, uri=NOWHERE))
    assert known is not None
    assert Path(known.model.ref).is_relative_to(moved)
    assert known.model.fingerprint == champion.model.fingerprint
    shutil.rmtree(moved / "registered" / known.model.fingerprint.rpartition("@")[2])
    with pytest.raises(StoreError, match=r"small@champion\.json, cannot be loaded"):
        find_champion(machine(moved, uri=NOWHERE))


@pytest.fixture
def another_server() -> Iterator[str]:
    """Return the address of a server that answers, and is no MLflow."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_that_is_no_champion_is_an_error_and_not_an_outage(
    machine: Machine, another_server: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="'champion' cannot be looked up in MLflow at http"):
        find_champion(machine(uri=another_server))
    (tmp_path / "mlflow.db").write_text("no database")
    with pytest.raises(StoreError, match="'champion' cannot be looked up in MLflow at sqlite"):
        find_champion(machine(uri=default_uri(tmp_path)))


def test_a_champion_whose_files_are_gone_is_an_error(
    student: Artifact, machine: Machine, office: Path, tmp_path: Path
) -> None:
    kept = (office / "mlartifacts").rename(office / "kept")
    try:
        with pytest.raises(StoreError, match=r"models:/small/1: its files cannot be loaded: .* artifacts of run "):
            find_champion(machine())
    finally:
        kept.rename(office / "mlartifacts")


def test_weights_other_than_the_registered_are_refused(
    student: Artifact, machine: Machine, office: Path, tmp_path: Path
) -> None:
    client = connect(default_uri(office))
    version = client.get_model_version("small", "1")
    files = Path(client.get_run(version.run_id).info.artifact_uri.removeprefix("file://")) / "student"
    kept = tmp_path / "kept"
    shutil.copytree(files, kept)
    (files / "model.safetensors").write_bytes(b"swapped")
    try:
        with pytest.raises(StoreError, match="models:/small/1"):
            find_champion(machine())
    finally:
        shutil.copy(kept / "model.safetensors", files)


def test_candidates_are_named_by_version_alias_or_folder(student: Artifact, machine: Machine) -> None:
    refs = ("models:/small@champion", student.uri, "org/other")
    found = candidates(machine(candidates=refs))
    assert [model.name for model in found] == ["version 1", Path(student.uri).name, "other"]
    assert {model.fingerprint for model in found[:2]} == {model_identity(student.uri)}
    for missing in ("models:/small/7", "models:/small@nobody", "models:/unknown/1"):
        with pytest.raises(ConfigError, match="models:/NAME/VERSION"):
            candidates(machine(candidates=(missing,)))
    with pytest.raises(ConfigError, match="'version 1'"):
        candidates(machine(candidates=("models:/small/1", "models:/small@champion")))
    assert candidates(machine()) == []


def test_without_a_registered_student_there_is_no_champion_or_candidate(student: Artifact, machine: Machine) -> None:
    run = machine(enabled=True, alias="nobody")
    assert find_champion(run) is None
    assert candidates(run) == []
    off = machine(start_from_champion=False)
    assert find_champion(off) is None
