"""Stages and shards on other machines: flow runs of other pools, Ray workers."""
