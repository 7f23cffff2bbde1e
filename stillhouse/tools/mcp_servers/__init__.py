"""Tools of MCP servers: their sessions, their results as text, and the `Tool` objects a toolbox offers.

Imported only if the config names a server: the `mcp` package takes a second.
"""
