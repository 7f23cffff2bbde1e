"""Teachers behind servers.

`connect` makes one from the config, tried before it is used. `vllm`, `sglang` and `echo` are forms of request and
answer, `answers` is what the answers have in common, `requests` sends them in bounded batches, and `journal` keeps what
was answered.
"""
