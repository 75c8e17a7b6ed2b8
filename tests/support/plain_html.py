"""Check of a notebook's HTML: closed elements, no script, nothing from elsewhere."""

from html.parser import HTMLParser

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
VOID = {"img", "br"}


class PlainHtml(HTMLParser):
    """Parses HTML, and raises AssertionError for what a notebook must not hold."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    @property
    def text(self) -> str:
        """All text between the elements."""
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in FORBIDDEN, tag
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            assert name != "href", value
            if name == "src":
                assert (value or "").startswith("data:image/png;base64,"), value
            if name == "style":
                assert "url(" not in (value or "") and "position" not in (value or ""), value
        if tag == "img":
            self.pictures.append(dict(attrs))
            assert dict(attrs).get("alt"), "a picture without an alternative text"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
