"""Expand lines such as ``.. exports:: agp.kernels`` of the reference, which list the public names of a subpackage."""

import importlib
import re
from pathlib import Path
from tempfile import TemporaryDirectory

REFERENCE = Path(__file__).parents[1] / "reference"
LINE = re.compile(r"^\.\. exports:: (agp\.\w+)$", re.MULTILINE)
LISTING = """.. automodule:: {package}
   :no-members:
{short_names}
.. currentmodule:: {package}

.. autosummary::
   :toctree: names
   :nosignatures:

{names}"""


def expanded(text):
    """Return the text of a page with the names in ``__all__`` of its subpackages, and the short names of classes."""
    return LINE.sub(lambda match: _listing(match[1]), text)


def _listing(package):
    module = importlib.import_module(package)
    exported = [vars(module)[name] for name in module.__all__]
    short = [f"``{x.short_name}``" for x in exported if isinstance(x, type) and "short_name" in vars(x)]
    short_names = f"\nShort names in text: {', '.join(short)}.\n" if short else ""
    names = "\n".join(f"   {name}" for name in module.__all__)
    return LISTING.format(package=package, short_names=short_names, names=names)


def _expand(app, docname, source):
    source[0] = expanded(source[0])


def _pages():
    """Return the texts of the pages with such lines, by name."""
    pages = {f"reference/{page.stem}": page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md")}
    return {name: text for name, text in pages.items() if LINE.search(text)}


def _write_names(app):
    """Write a page for each name; autosummary writes pages only for names that it finds in files."""
    from sphinx.ext.autosummary.generate import generate_autosummary_docs

    with TemporaryDirectory() as folder:
        file = Path(folder) / "names.rst"
        lines = (match[0] for text in _pages().values() for match in LINE.finditer(text))
        file.write_text(expanded("\n".join(lines)), encoding="utf-8")
        generate_autosummary_docs([str(file)], output_dir=REFERENCE / "names", app=app)


def _always(app, env, added, changed, removed):
    """Return the pages with such lines, which change if ``__all__`` or a docstring changes."""
    return [name for name in _pages() if name in env.found_docs]


def setup(app):
    """Register the functions."""
    app.connect("builder-inited", _write_names)
    app.connect("source-read", _expand)
    app.connect("env-get-outdated", _always)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
