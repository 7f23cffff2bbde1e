import mcp_types
import pytest
from mcp_types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, ResourceLink, TextContent

from stillhouse.tools.mcp_servers.server import as_text

NOTE = mcp_types.TextResourceContents(uri="shop://note", text="the note")
MAP = BlobResourceContents(uri="shop://map", mime_type="image/webp", blob="eA==")


@pytest.mark.parametrize(
    ("content", "structured", "text"),
    [
        ([TextContent(text="a"), TextContent(text="b\nc")], None, "a\nb\nc"),
        ([ImageContent(data="eA==", mime_type="image/png")], None, "[image (image/png) that cannot be shown here]"),
        ([AudioContent(data="eA==", mime_type="audio/wav")], None, "[audio (audio/wav) that cannot be shown here]"),
        ([ResourceLink(name="report", uri="file:///report.pdf")], None, "[resource report: file:///report.pdf]"),
        ([EmbeddedResource(resource=MAP)], None, "[resource shop://map (image/webp) that cannot be shown here]"),
        ([EmbeddedResource(resource=NOTE)], None, "the note"),
        ([], {"price": 3}, '{"price": 3}'),
        ([TextContent(text="three")], {"price": 3}, "three"),
        ([], None, ""),
    ],
)
def test_a_result_is_written_as_text(
    content: list[mcp_types.ContentBlock], structured: dict[str, int] | None, text: str
) -> None:
    assert as_text(mcp_types.CallToolResult(content=content, structured_content=structured)) == text
