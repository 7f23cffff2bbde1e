"""A store on S3, which moto's server answers for on loopback: what one machine writes another one finds."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError, StoreError
from stillhouse.store import ArtifactStore, canonical_json
from stillhouse.store.manifest import Manifest, fingerprint_of
from stillhouse.store.remote import artifact_prefix
from stillhouse.types import Artifact, JsonObject

URL = "s3://bucket/team/runs"
KEY = "0123456789abcdef0123"
OF_ANOTHER = canonical_json(
    Manifest(artifact=Artifact(uri="u", fingerprint=fingerprint_of({}), num_rows=0), files={}).model_dump(mode="json")
)

pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture
def there(tmp_path: Path) -> ArtifactStore:
    """The store as another machine sees it."""
    return ArtifactStore(URL, tmp_path / "there")


@pytest.fixture
def here(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(URL, tmp_path / "here")


def write(store: ArtifactStore, text: str = "one\n") -> Artifact:
    def fill(folder: Path) -> tuple[int, JsonObject]:
        (folder / "deep").mkdir()
        (folder / "rows.txt").write_text(text)
        (folder / "deep" / "more.txt").write_text("more")
        (folder / "empty.txt").touch()
        return 1, {"seconds": 2.0}

    return store.write("stage", KEY, fill)


def names(s3: Any) -> list[str]:
    return [entry["Key"] for entry in s3.client().list_objects_v2(Bucket="bucket").get("Contents", ())]


def shared(store: ArtifactStore, **written: Any) -> Artifact:
    artifact = write(store, **written)
    store.share(artifact)
    return artifact


def test_another_machine_has_the_artifact_byte_for_byte(there: ArtifactStore, here: ArtifactStore) -> None:
    artifact = here.here(shared(there))
    assert here.problem(artifact) is not None
    assert here.obtain(artifact) is None
    assert here.problem(artifact) is None
    folder = Path(artifact.uri)
    assert folder.is_relative_to(here.root)
    assert (folder / "rows.txt").read_text() == "one\n"
    assert (folder / "deep" / "more.txt").read_text() == "more"
    assert (folder / "empty.txt").read_bytes() == b""


def test_what_is_whole_here_is_not_fetched(here: ArtifactStore, s3: Any) -> None:
    artifact = shared(here)
    s3.asked.clear()
    assert here.obtain(artifact) is None
    assert s3.asked == []


def test_what_is_damaged_here_is_fetched_again(here: ArtifactStore) -> None:
    artifact = shared(here)
    (Path(artifact.uri) / "rows.txt").write_text("0ne\n")
    assert here.obtain(artifact) is None
    assert (Path(artifact.uri) / "rows.txt").read_text() == "one\n"


def test_nothing_is_there_before_the_manifest_which_is_last(there: ArtifactStore, here: ArtifactStore, s3: Any) -> None:
    artifact = shared(there)
    puts = [path.rpartition("/")[2] for method, path in s3.asked if method == "PUT"]
    assert sorted(puts[:-1]) == ["empty.txt", "more.txt", "rows.txt"]
    assert puts[-1] == "manifest.json"
    s3.client().delete_object(Bucket="bucket", Key=f"team/runs/{artifact_prefix(artifact)}/manifest.json")
    assert "is gone" in (here.obtain(here.here(artifact)) or "")


@pytest.mark.parametrize(
    ("file", "body", "problem"),
    [
        ("rows.txt", b"0ne\n", "rows.txt was altered"),
        ("rows.txt", b"o", "rows.txt is gone or has another size"),
        ("rows.txt", None, "rows.txt is gone or has another size"),
        ("manifest.json", b"{", "manifest.json cannot be read"),
        ("manifest.json", b'{"files": {}}', "manifest.json cannot be read"),
        ("manifest.json", OF_ANOTHER, "of another artifact"),
    ],
)
def test_damage_on_the_storage_is_found_and_mended(
    there: ArtifactStore, here: ArtifactStore, s3: Any, file: str, body: bytes | None, problem: str
) -> None:
    artifact = here.here(shared(there))
    key = f"team/runs/{artifact_prefix(artifact)}/{file}"
    if body is None:
        s3.client().delete_object(Bucket="bucket", Key=key)
    else:
        s3.client().put_object(Bucket="bucket", Key=key, Body=body)
    assert problem in (here.obtain(artifact) or "")
    assert not Path(artifact.uri).exists()
    here.forget(artifact)
    assert names(s3) == []
    assert shared(here) == artifact
    third = ArtifactStore(URL, here.root.with_name("third"))
    assert third.obtain(third.here(artifact)) is None


def test_a_new_artifact_of_the_same_key_leaves_the_old_one_readable(there: ArtifactStore, here: ArtifactStore) -> None:
    old, new = shared(there), shared(there, text="two\n")
    assert old.uri == new.uri
    for artifact, text in ((old, "one\n"), (new, "two\n")):
        assert here.obtain(here.here(artifact)) is None
        assert (Path(here.here(artifact).uri) / "rows.txt").read_text() == text


def test_transient_failures_of_requests_are_retried(there: ArtifactStore, here: ArtifactStore, s3: Any) -> None:
    artifact = write(there)
    s3.num_refusals = 2
    there.share(artifact)
    s3.num_refusals = 2
    assert here.obtain(here.here(artifact)) is None
    assert s3.num_refusals == 0


PROGRAM = """
    import sys
    from pathlib import Path
    from stillhouse.store import ArtifactStore
    from stillhouse.types import Artifact

    store = ArtifactStore(*sys.argv[1:3])
    store.share(Artifact.model_validate_json(sys.argv[3]))
"""


def test_an_upload_ended_by_kill_9_is_gone_on_with(there: ArtifactStore, here: ArtifactStore, s3: Any) -> None:
    artifact = write(there)
    s3.hold = lambda method, path: method == "PUT" and path.endswith("rows.txt")
    arguments = [URL, str(there.root), artifact.model_dump_json()]
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments]) as uploader:
        assert s3.held.wait(120)
        # The others are small and go at the same time.
        while len(names(s3)) < 2:
            assert uploader.poll() is None
        os.kill(uploader.pid, signal.SIGKILL)
    s3.hold = lambda method, path: False
    assert "is gone" in (here.obtain(here.here(artifact)) or "")
    s3.asked.clear()
    there.share(artifact)
    assert [path.rpartition("/")[2] for method, path in s3.asked if method == "PUT"] == ["rows.txt", "manifest.json"]
    assert here.obtain(here.here(artifact)) is None


def test_a_bucket_that_is_not_there_is_told_of_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"s3://no-bucket/runs/stillhouse .*AWS_ENDPOINT_URL"):
        ArtifactStore("s3://no-bucket/runs", tmp_path).check()
    ArtifactStore(URL, tmp_path).check()


def test_a_protocol_that_nothing_knows_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.store .*nosuch://"):
        ArtifactStore("nosuch://bucket/runs", tmp_path).check()
