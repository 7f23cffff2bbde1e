"""Teachers that score what the student sampled: local models, the student itself with other weights, and servers.

`teacher` says what a teacher is and what it is asked; `load` makes them from the config, and `routing` says who scores
a prompt. `vocabulary`, `stop_tokens` and `probe` find out before the training whether a teacher is of use. `local` and
`own` are teachers in this process over a `packed` model, those of `served` are behind servers. `reading` is what a
teacher reads of a trajectory: with a `hint`, or in tokens of its own, from which `alignment` leads back to the
student's.
"""
