"""Child processes that end with their parent, and pools of workers with time limits."""
