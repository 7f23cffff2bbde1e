"""The programs compared, each run in a process of its own."""
