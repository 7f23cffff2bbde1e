"""The journal: what was paid for, durable before it is used, and who is paying for what.

One SQLite file holds every completion and every tool result by its place in its rollout, and every finished trajectory.
A rollout that was cut off is replayed up to its last durable answer and goes on from there; a finished one is read back
to the byte. Nothing is ever replaced: the first writer of a place wins and every other gets what it wrote, so that two
processes on one journal tell the same story.

    schema     the file: its table, and how files of earlier versions are brought to it
    writer     the thread that makes what has gathered durable, one transaction at a time
    claims     which rollouts this journal runs, as kernel locks that end with their process
    journal    what the other rooms use: look-ups, puts, claims, one open journal for all of a process
    parts      journals of a few rollouts each, for processes on other machines
    copies     what several machines with journals of their own tell each other by object storage

All users of one file are on one machine: neither WAL nor the locks work over a network.
"""

from stillhouse.inference.journal.journal import Journal, open_journal

__all__ = ["Journal", "open_journal"]
