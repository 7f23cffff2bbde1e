"""The clients compared. Each is a module run as a process of its own, in an environment that has its package.

    engine        ours, with journal and rate control
    script        `openai` with a semaphore, as many write it in an afternoon
    batches       a loose script on `httpx` that sends batches and halves them on a 429
    distilabel, curator, inspect_ai, datadesigner    from PyPI, each with its documented settings

A module here imports nothing of this repository but `job`, which needs nothing but Python; `engine` is the exception.
"""
