"""The names that files written for rnow import: `names.py` has them, `importing.py` gives them to such a file."""
