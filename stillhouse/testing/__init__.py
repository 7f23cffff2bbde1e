"""The parts of the simulated provider; `stillhouse.testing.provider` is what others import.

reply       what a script is shown and what it answers
limits      hidden limits, a pure state machine in a time that is passed in
headers     how a provider tells of its limits and refuses what exceeds them
answers     the script of a described service: echoes, tools, latencies, faults
embeddings  vectors of texts
batches     OpenAI's batch endpoint
ledger      what was asked, refused and billed, and when
wire        HTTP/1.1 on asyncio.Protocol
process     a provider as a process of its own
"""
