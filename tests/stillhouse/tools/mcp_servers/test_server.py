import mcp_types

from stillhouse.tools.mcp_servers.server import as_text


def result(*content: mcp_types.ContentBlock, structured: object = None) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=list(content), structured_content=structured)


def test_texts_stand_one_below_the_other() -> None:
    assert as_text(result(mcp_types.TextContent(text="a"), mcp_types.TextContent(text="b\nc"))) == "a\nb\nc"


def test_what_is_no_text_is_named() -> None:
    text = as_text(
        result(
            mcp_types.ImageContent(data="eA==", mime_type="image/png"),
            mcp_types.AudioContent(data="eA==", mime_type="audio/wav"),
            mcp_types.ResourceLink(name="report", uri="file:///report.pdf"),
            mcp_types.EmbeddedResource(
                resource=mcp_types.BlobResourceContents(uri="shop://map", mime_type="image/webp", blob="eA==")
            ),
        )
    )
    assert text.splitlines() == [
        "[image (image/png) that cannot be shown here]",
        "[audio (audio/wav) that cannot be shown here]",
        "[resource report: file:///report.pdf]",
        "[resource shop://map (image/webp) that cannot be shown here]",
    ]


def test_an_embedded_text_is_shown() -> None:
    resource = mcp_types.TextResourceContents(uri="shop://note", text="the note")
    assert as_text(result(mcp_types.EmbeddedResource(resource=resource))) == "the note"


def test_structured_content_is_written_out_where_nothing_else_came() -> None:
    assert as_text(result(structured={"price": 3})) == '{"price": 3}'
    assert as_text(result(mcp_types.TextContent(text="three"), structured={"price": 3})) == "three"
    assert as_text(result()) == ""
