"""Tools of MCP servers: their sessions, their results as text, and the `Tool` objects a toolbox offers.

`stillhouse.tools.mcp_servers.tools` is imported only where the config names a server: the `mcp` package takes a second.
"""
