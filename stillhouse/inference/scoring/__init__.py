"""Scores of given tokens from servers. Free of torch.

scorer     requests in batches, with retries, rate limits and budget
api        what is scored, and the forms of request and answer: `completions_api` (vLLM, `echo`), `sglang_api`, and
           `given_ids_api` (vLLM again, tokens of the client's choice)
scores     log-probabilities of tokens, and of a teacher's most probable ones
ledger     what was answered, durable before it is used, in `segments`
"""
