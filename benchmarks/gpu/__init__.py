"""Everything that only a GPU can show: correctness of its kernels, speed, memory, and where the time goes."""
