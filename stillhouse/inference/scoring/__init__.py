"""Log-probabilities of given tokens from servers. Free of torch.

scorer     requests in batches, with retries, rate limits and budget
apis       the forms of request and answer of vLLM, SGLang and completions with `echo`
journal    what was answered, durable before it is used
"""
