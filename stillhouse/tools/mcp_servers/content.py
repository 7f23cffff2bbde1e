"""What an MCP tool answered, as text for the model."""

import json

import mcp_types


def as_text(result: mcp_types.CallToolResult) -> str:
    """The texts of a result, one below the other; of what is no text, a line that says what it is.

    Structured content is the same answer for programs; it is written out only where no content came with it.
    """
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(_block(block) for block in result.content)


def _block(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"[{block.type} ({block.mime_type}) that cannot be shown here]"
        case mcp_types.ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case mcp_types.EmbeddedResource():
            return f"[resource {block.resource.uri} ({block.resource.mime_type or 'binary'}) that cannot be shown here]"
