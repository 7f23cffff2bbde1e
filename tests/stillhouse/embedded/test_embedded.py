import subprocess
import sys

import pytest

from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError


@pytest.mark.parametrize("name", ["teacher", "student", "prompts.jsonl", "chat_template.jinja"])
def test_a_shipped_name_is_a_path_that_exists(name: str):
    assert embedded_path(name).exists()


@pytest.mark.parametrize("name", ["techer", "", "../errors.py", "build.py"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str):
    with pytest.raises(ConfigError, match=r"chat_template\.jinja, prompts\.jsonl, student, teacher"):
        embedded_path(name)


def test_finding_a_path_imports_nothing_heavy():
    code = (
        "import sys; from stillhouse.embedded import embedded_path; embedded_path('teacher');"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
