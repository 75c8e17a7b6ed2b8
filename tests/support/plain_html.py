"""Check of a notebook's HTML: closed elements, no script, nothing from elsewhere."""

from support.page_reader import PageReader

FORBIDDEN = {
    "script",
    "style",
    "link",
    "iframe",
    "object",
    "embed",
    "form",
    "meta",
    "base",
    "video",
    "audio",
}


class PlainHtml(PageReader):
    """Parses HTML, and raises AssertionError for what a notebook must not hold."""

    @property
    def pictures(self) -> list[dict[str, str | None]]:
        """Attributes of the pictures."""
        return self.all("img")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_startendtag(tag, attrs)
        assert tag not in FORBIDDEN, tag
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            assert name != "href", value
            if name == "src":
                assert (value or "").startswith("data:image/png;base64,"), value
            if name == "style":
                assert "url(" not in (value or "") and "position" not in (value or ""), value
        if tag == "img":
            assert dict(attrs).get("alt"), "a picture without an alternative text"
