"""Write the tables of docs/models.md; with ``--check``, only compare them.

The sources are the records in `agp.methods.METHODS`, and docs/features.toml.
"""

import re
import sys
import tomllib
from functools import partial
from pathlib import Path

from agp.methods import METHODS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "features.toml"
PLACES = {
    ROOT / "docs" / "models.md": ("methods", "variants", "areas"),
}
"""The pages with tables, which are between comments such as <!-- methods --> and <!-- /methods -->."""


def methods() -> str:
    """Return a table of the records in `METHODS`."""
    header = ("Name", "Method", "Model", "Rows per step", "Likelihoods", "Arguments", "Supports")
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for method in METHODS.values():
        name, description, rows, likelihoods, arguments = method.summary()
        name = f"[`{name}`]({method.page}.md)" if method.page else f"`{name}`"
        parts = method.build.keywords if isinstance(method.build, partial) else {}
        model = ", ".join([f"`{method.model.__name__}`", *(f"`{key}={x.__name__}`" for key, x in parts.items())])
        uses = {"growth": method.can_grow, "`partial_fit`": method.takes_parts}
        arguments = ", ".join(f"`{one}`" for one in arguments.split(", ") if one)
        supports = ", ".join(use for use, given in uses.items() if given)
        cells = (name, description, model, rows, likelihoods, arguments, supports)
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "\n".join(lines)


def lists() -> dict[str, str]:
    """Return the Markdown of each table."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    variants = [f"| {one['what']} | {one['names']} |" for one in table["method"]]
    areas = [f"| {one['what']} | {one['text']} |" for one in table["area"]]
    return {
        "methods": methods(),
        "variants": "\n".join(["| Model | Classes |", "|---|---|", *variants]),
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
            sys.stdout.write(f"{page.relative_to(ROOT)} does not match docs/features.toml and agp.methods.METHODS\n")
        else:
            page.write_text(written(page), encoding="utf-8")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
