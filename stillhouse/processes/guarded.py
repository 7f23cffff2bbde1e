"""`python -m stillhouse.processes.guarded MODULE ARGS` runs the module as `python -m` does, until the parent ends.

The guard is there before the module and what it imports, which may take seconds.
"""

import runpy
import sys

from stillhouse.processes.children import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
