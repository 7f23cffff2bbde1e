import subprocess
import sys
from pathlib import Path

import stillhouse


def test_a_checkout_that_is_not_installed_has_a_version_to_show():
    # -S leaves out site-packages, and with them what is installed.
    code = f"import sys; sys.path.append({str(Path(stillhouse.__file__).parents[1])!r})\n"
    code += "from stillhouse.version import code_version; print(code_version())"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "uninstalled\n"
