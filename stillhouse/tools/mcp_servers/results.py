"""What MCP servers answer, brought into the form that the `mcp` package takes before it sees it.

The package refuses whole answers for a part that no model reads: content of a type it does not know or that is left
out, structured content that misses the tool's output schema. Many servers give such answers.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from mcp_types import JSONRPCResponse

from stillhouse.types import JsonObject

_TOOL_FIELDS: Final = ("name", "title", "description", "annotations")


@asynccontextmanager
async def readable(transport: AbstractAsyncContextManager[tuple[Any, Any]]) -> AsyncIterator[tuple[Any, Any]]:
    """The transport, with calls answered by one text and tools listed without what is not used here."""
    async with transport as (reading, writing):
        yield _Readable(reading), writing


class _Readable:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> "_Readable":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> Any:
        return await self._stream.__aexit__(*exception)

    def __aiter__(self) -> "_Readable":
        return self

    async def __anext__(self) -> Any:
        item = await self._stream.__anext__()
        message = getattr(item, "message", None)
        if isinstance(message, JSONRPCResponse):
            message.result = _tidied(message.result)
        return item


def _tidied(result: JsonObject) -> JsonObject:
    tools = result.get("tools")
    if isinstance(tools, list):
        return {**result, "tools": [_tidied_tool(tool) for tool in tools if isinstance(tool, dict)]}
    if result.keys().isdisjoint({"content", "structuredContent", "isError"}):
        return result
    others = {key: value for key, value in result.items() if key != "structuredContent"}
    has_failed = str(result.get("isError", "")).lower() == "true"
    return {**others, "content": [{"type": "text", "text": as_text(result)}], "isError": has_failed}


def _tidied_tool(tool: JsonObject) -> JsonObject:
    kept = {key: tool[key] for key in _TOOL_FIELDS if key in tool}
    schema = tool.get("inputSchema")
    # Left out, or its type, by servers whose tools take no arguments.
    return {**kept, "inputSchema": {**(schema if isinstance(schema, dict) else {}), "type": "object"}}


def as_text(result: JsonObject) -> str:
    """The texts of a result, one per line, a placeholder for content that is not text; else what is for programs."""
    content, structured = result.get("content") or [], result.get("structuredContent")
    texts = [_block(block) for block in (content if isinstance(content, list) else [content])]
    if structured is not None and not any(texts):
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(texts)


def _block(block: Any) -> str:
    match block:
        case str(text) | {"text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource_link", **link}:
            return f"[resource {link.get('name')}: {link.get('uri')}]"
        case {"type": "resource", "resource": {**held}}:
            return f"[resource {held.get('uri')} ({held.get('mimeType') or 'binary'}) that cannot be shown here]"
        case {"type": kind, "mimeType": mime_type}:
            return f"[{kind} ({mime_type}) that cannot be shown here]"
        case {"type": kind}:
            return f"[{kind} that cannot be shown here]"
    return json.dumps(block, ensure_ascii=False)
