"""The journal: paid answers, durable before they are used, and claims on the rollouts that are being paid for.

One SQLite file holds every completion and every tool result by its place in its rollout, and every finished trajectory.
An interrupted rollout is replayed up to its last durable answer and goes on from there; a finished one is read back
to the byte. Nothing is ever replaced: the first writer of a place wins and every other gets what it wrote, so that two
processes on one journal agree.

    schema     the file: its table, and how files of earlier versions are brought to it
    writer     the thread that makes writes durable, one transaction for many
    claims     which rollouts this journal runs, as kernel locks that end with their process
    journal    the interface: look-ups, puts, claims; one open journal for a process
    parts      journals of a few rollouts each, for processes on other machines
    copies     exchange of journals between machines by object storage

All users of one file are on one machine: neither WAL nor the locks work over a network.
"""

from stillhouse.inference.journal.journal import Journal, open_journal

__all__ = ["Journal", "open_journal"]
