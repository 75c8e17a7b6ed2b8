"""Pages for files outside docs/ that pages link to, so that the site holds all it speaks of."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = "repository"
"""Folder of the site in which these pages lie."""
LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".toml": "toml", ".sh": "bash"}
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


class RepositoryPages:
    """Files of the repository by the site's address, for links that lead out of docs/."""

    def __init__(self, checkout: Path, docs: Path) -> None:
        self._checkout = checkout
        self._docs = docs.relative_to(checkout).as_posix()
        self._paths: dict[str, str] = {}

    def linked_from(self, pages: Mapping[str, str]) -> dict[str, str]:
        """Return the pages, by address, of all files that these pages link to, and those link to in
        turn.
        """
        found: dict[str, str] = {}
        waiting = dict(pages)
        while waiting:
            uri, text = waiting.popitem()
            for match in _LINK.finditer(_CODE.sub("", text)):
                target = self._site_address(self._repository_path(uri), match["target"])
                if target and target.startswith(f"{FOLDER}/") and target not in found:
                    found[target] = waiting[target] = self._page_of(self._repository_path(target))
        return found

    def relinked(self, markdown: str, uri: str) -> str:
        """Rewrite the links of a page that lead to files of the repository."""
        origin = self._repository_path(uri)
        kept: list[str] = []

        def keep(match: re.Match[str]) -> str:
            kept.append(match[0])
            return f"\0{len(kept) - 1}\0"

        def link(match: re.Match[str]) -> str:
            target = self._site_address(origin, match["target"])
            if target is None:
                return match[0]
            return posixpath.relpath(target, posixpath.dirname(uri) or ".") + (
                match["anchor"] or ""
            )

        text = _LINK.sub(link, _CODE.sub(keep, markdown))
        return re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], text)

    def _repository_path(self, uri: str) -> str:
        """Path in the repository of a page of the site."""
        return self._paths.get(uri, f"{self._docs}/{uri}")

    def _site_address(self, origin: str, target: str) -> str | None:
        """Address of a link's target; None for one that the site does not hold, which mkdocs then
        refuses.
        """
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if path.startswith(f"{self._docs}/"):
            return path.removeprefix(f"{self._docs}/")
        if path.startswith("..") or not (self._checkout / path).is_file():
            return None
        # mkdocs leaves dot files out
        visible = "/".join(part.lstrip(".") for part in path.split("/"))
        uri = f"{FOLDER}/{visible}" if path.endswith(".md") else f"{FOLDER}/{visible}.md"
        self._paths[uri] = path
        return uri

    def _page_of(self, path: str) -> str:
        text = (self._checkout / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            return text
        fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text) or [""]))
        return (
            f"# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{text.rstrip()}\n"
            f"{fence}\n"
        )
