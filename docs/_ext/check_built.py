"""Check the built pages: ``python docs/_ext/check_built.py docs/_build``.

The pages must load nothing from other hosts, and must be small. Images must have alternative texts, links and their
anchors must exist, formulas must be rendered, and the search index must contain the terms in `search_words`.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from search_words import missing_words

LARGEST = 500_000
"""Maximum number of bytes of a page, without images."""
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
TEX = re.compile(r"\\(?:begin|frac|mathcal|operatorname|tfrac|sum|top)\b|\$\$")


class Page(HTMLParser):
    """The resources, links and text of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.undescribed: list[str] = []
        self.text: list[str] = []
        self.inside: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the resources, links and anchors of an element."""
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "style", "pre", "code"):
            self.inside.append(tag)
        if tag in FETCHED and given.get(FETCHED[tag]):
            self.fetched.append(given[FETCHED[tag]])
        if tag == "link" and {"stylesheet", "preload", "icon", "preconnect"} & set(given.get("rel", "").split()):
            self.fetched.append(given.get("href", ""))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img" and not given.get("alt", "").strip():
            self.undescribed.append(given.get("src", ""))
        self.anchors |= {given[name] for name in ("id", "name") if name in given}

    def handle_endtag(self, tag: str) -> None:
        """Record the end of an element whose text is not prose."""
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        """Store text that is prose."""
        if not self.inside:
            self.text.append(data)


def is_elsewhere(address: str) -> bool:
    """Return True if an address is on another host."""
    return bool(urlsplit(address).netloc) or address.startswith("//")


def broken(here: Path, link: str, pages: dict[Path, Page]) -> bool:
    """Return True if a link within the site has no target."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    there = (here.parent / unquote(parts.path)).resolve() if parts.path else here
    if there not in pages:
        return not there.exists()
    return bool(parts.fragment) and unquote(parts.fragment) not in pages[there].anchors


def faults(root: Path) -> list[str]:
    """Return all faults of all pages, as one line per fault."""
    pages = {file.resolve(): Page(file) for file in sorted(root.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        name = file.relative_to(root.resolve())
        found += [f"{name}: fetches {address}" for address in page.fetched if is_elsewhere(address)]
        found += [f"{name}: the image {source} has no alternative text" for source in page.undescribed]
        found += [f"{name}: the link {link} is broken" for link in page.links if broken(file, link, pages)]
        found += [f"{name}: unrendered formula: {match[0]}" for match in TEX.finditer("".join(page.text))][:1]
        if (size := file.stat().st_size) > LARGEST:
            found.append(f"{name}: too large: {size:,} bytes")
    found += [f"searchindex.js: no entry for {word!r}" for word in missing_words(root)]
    for sheet in root.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        found += [
            f"{sheet.name}: fetches {url}" for url in re.findall(r"(?:url\(|@import )['\"]?(https?:[^)'\"]+)", text)
        ]
    return found


def main() -> int:
    """Print the faults, and return 1 if there are any."""
    found = faults(Path(sys.argv[1]))
    sys.stdout.write("".join(f"{line}\n" for line in found) or "built pages: no faults\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
