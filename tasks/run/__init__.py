"""A flow run: the context of its tasks, its progress, its page in Prefect, how it ends. Imports no other room."""
