"""Answers of MCP servers, brought into the form that the `mcp` package takes before it sees it.

The package refuses whole answers for a part that no model reads: content of a type it does not know or that is left
out, structured content that misses the tool's output schema. Many servers give such answers.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from stillhouse.tools.results import utf8
from stillhouse.types import JsonObject


@asynccontextmanager
async def readable(transport: AbstractAsyncContextManager[tuple[Any, Any]]) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the transport, with calls answered by one text and tools listed without what is not used here."""
    sending, receiving = anyio.create_memory_object_stream[Any]()

    async def pass_on(incoming: Any) -> None:
        async with sending:
            async for item in incoming:
                await sending.send(_readable(item))

    async with transport as (incoming, outgoing), anyio.create_task_group() as passing_on:
        passing_on.start_soon(pass_on, incoming)
        yield receiving, outgoing
        passing_on.cancel_scope.cancel()


def _readable(item: Any) -> Any:
    """Return an incoming message, or the error of one that could not be read."""
    if isinstance(item, ValidationError):
        # Nobody would answer the call that waits for this line.
        with suppress(ValueError, TypeError):
            # Takes escaped halves of a character, as pydantic does not.
            line = json.dumps(json.loads(item.errors()[0]["input"]), ensure_ascii=False)
            item = SessionMessage(jsonrpc_message_adapter.validate_json(utf8(line)))
    if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
        item.message.result = _tidied(item.message.result)
    return item


def _tidied(result: JsonObject) -> JsonObject:
    if isinstance(tools := result.get("tools"), list):
        return {**result, "tools": [_tidied_tool(tool) for tool in tools if isinstance(tool, dict)]}
    if result.keys().isdisjoint({"content", "structuredContent", "isError"}):
        return result
    content = [{"type": "text", "text": _text_of(result)}]
    return {**result, "content": content, "structuredContent": None, "isError": result.get("isError") is True}


def _tidied_tool(tool: JsonObject) -> JsonObject:
    kept: JsonObject = {key: tool[key] for key in ("name", "title", "description", "annotations") if key in tool}
    schema = tool.get("inputSchema")
    # Left out, or its type, by servers whose tools take no arguments.
    return {**kept, "inputSchema": {**(schema if isinstance(schema, dict) else {}), "type": "object"}}


def _text_of(result: JsonObject) -> str:
    """Return the texts of a result, one per line, and a word for what is no text; else what is meant for programs."""
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
        case {"type": kind, **other}:
            form = f" ({other['mimeType']})" if "mimeType" in other else ""
            return f"[{kind}{form} that cannot be shown here]"
    return json.dumps(block, ensure_ascii=False)
