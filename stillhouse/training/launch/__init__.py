"""Where a training runs: in this process, in one of its own, or on several devices."""
