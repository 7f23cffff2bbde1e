"""Prompts as vectors, for a selection of different ones.

client   one request to an endpoint that embeds
embed    many texts, each paid for once
rows     the vectors of a shard's rows
"""
