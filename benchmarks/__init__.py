"""What Stillhouse claims, measured: each module is a command, `python -m benchmarks.NAME`."""
