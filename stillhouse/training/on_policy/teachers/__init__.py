"""Teachers that score what the student sampled: local models, the student itself with other weights, and servers.

`teacher` is the interface; `load` builds teachers from the config and `router` assigns one to each prompt. `local` and
`self_teacher` run in this process over a `packed` model, `served` talks to servers. `views` makes the tokens that a
teacher reads: with a `hint`, or in its own vocabulary, from which `alignment` leads back to the student's tokens.
`vocabulary` and `probe` check a teacher before training starts.
"""
