"""Tools that reach the network: `browse`, and the guard that decides which addresses they may reach."""

import os
import tempfile
from pathlib import Path

# On import crawl4ai makes cache folders, in the home folder by default. No page is cached.
os.environ.setdefault("CRAWL4_AI_BASE_DIRECTORY", str(Path(tempfile.gettempdir(), f"crawl4ai-{os.getuid()}")))
