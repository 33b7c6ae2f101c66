"""Write the tables of docs/models.md from docs/features.toml; with ``--check``, only compare them."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "features.toml"
PLACES = {
    ROOT / "docs" / "models.md": ("methods", "areas"),
}
"""The pages with tables, which are between comments such as <!-- methods --> and <!-- /methods -->."""


def lists() -> dict[str, str]:
    """Return the Markdown of each table."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    methods = [f"| {one['what']} | {one['names']} |" for one in table["method"]]
    areas = [f"| {one['what']} | {one['text']} |" for one in table["area"]]
    return {
        "methods": "\n".join(["| Method | Classes |", "|---|---|", *methods]),
        "areas": "\n".join(["| | |", "|---|---|", *areas]),
    }


def written(page: Path) -> str:
    """Return the text of a page with up-to-date tables."""
    text = page.read_text(encoding="utf-8")
    for name in PLACES[page]:
        found = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not found.search(text):
            msg = f"{page.name} does not contain the comments <!-- {name} --> and <!-- /{name} -->."
            raise ValueError(msg)
        inside = f"\n{lists()[name]}\n\n"
        text = found.sub(lambda match, inside=inside: match[1] + inside + match[2], text)
    return text


def main() -> int:
    """Write or compare the tables."""
    stale = [page for page in PLACES if page.read_text(encoding="utf-8") != written(page)]
    for page in stale:
        if "--check" in sys.argv:
            sys.stdout.write(f"{page.relative_to(ROOT)} does not match docs/features.toml\n")
        else:
            page.write_text(written(page), encoding="utf-8")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
