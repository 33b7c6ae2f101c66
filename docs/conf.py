"""The configuration of the guide: ``sphinx-build -W -b html docs docs/_build``."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from sphinx.ext.autosummary import autosummary_toc

from agp import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "agp"
author = "the agp authors"
copyright = "the agp authors"  # noqa: A001
release = version = __version__

extensions = [
    "exports",
    "mathml",
    "search_words",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_templates", "api"]
templates_path = ["_templates"]
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["agp.css"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}  # stubs of the reference take the first

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Tutorials: pages with a notebook's header are executed once, then taken from the cache until their code changes.
# The gallery: scripts docs/gallery/plot_*.py become pages in docs/gallery_built. Nothing is asked of another host.
extensions += ["sphinx_gallery.gen_gallery", "thumbnails"]
exclude_patterns += [".jupyter_cache", "gallery", "gallery_built/*.ipynb", "jupyter_execute"]
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / ".jupyter_cache")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}
sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["gallery_built"],
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}
suppress_warnings = ["config.cache"]  # sphinx-gallery's settings are no plain values

html_theme = "furo"
html_title = f"agp {release}"
html_show_copyright = False
html_copy_source = False

napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_mock_imports = [
    name for name in ("autogluon", "botorch", "gpytorch", "linear_operator") if find_spec(name) is None
]
autodoc_inherit_docstrings = False  # what overrides a method is explained where the method is
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
default_role = "py:obj"
maximum_signature_line_length = 88

_LITERAL = re.compile(r"(``.*?``|`.*?`)")
_UNTYPED = re.compile(r":type \w+: ~?(?:typing\.)?Any$")


_OF_MODELS = """
batch check conditioned draws drawn example_input inverted_matrices objective on_first_datum paths settled
site_gradients site_paths tightened width without_rows
"""
_OF_ESTIMATORS = """
get_metadata_routing set_fit_request set_partial_fit_request set_predict_request set_score_request
"""
INSIDE = frozenset([*_OF_MODELS.split(), *_OF_ESTIMATORS.split()])
"""Methods that the library calls; they are explained where they are declared, and left out where they are inherited."""


def _skip(app, what, name, obj, skip, options):
    """Leave what users do not call out of the pages that list inherited methods."""
    inherits = not isinstance(options, dict) and options.inherited_members  # summaries come with a dict
    return True if inherits and name in INSIDE else None


def _sources(app, what, name, obj, options, lines):
    """Make a paragraph that begins with "Source:" a section, so that it is not taken for a parameter."""
    for i, line in enumerate(lines):
        if line.startswith("Source:"):
            lines[i : i + 1] = ["References", "----------", line.removeprefix("Source:").strip()]
            return


def _plain_docstring(app, what, name, obj, options, lines):
    """Keep |x|, a norm or a divergence, from being read as a substitution; drop types that say nothing."""
    kept = []
    for line in lines:
        if _UNTYPED.match(line):
            continue
        parts = _LITERAL.split(line)
        parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
        kept.append("".join(parts))
    lines[:] = kept


def _plain_types(text):
    return re.sub(r"~?(?:collections\.abc\.)?Callable\[\[\.\.\.\], ~?(?:typing\.)?Any\]", "Pullback", text)


def _plain_signature(app, what, name, obj, options, signature, returns):
    """An array has no type that all libraries share: leave it out of signatures rather than call it Any."""
    if signature:
        # defaults that are no expressions
        signature = re.sub(r"<function (\w+)>", r"\1", signature.replace("<factory>", "{}"))
        signature = re.sub(r"~?(?:typing\.)?Any \| None", "Array | None", _plain_types(signature))
        signature = re.sub(r": ~?(?:typing\.)?Any(?: (=) (?=\S))?(?=[,)]|\S)", r"\1", signature)
    if returns:
        returns = None if re.fullmatch(r"~?(?:typing\.)?Any", returns) else _plain_types(returns)
    return signature, returns


def _leave_out_of_sidebar(app, doctree):
    """Remove the pages of single names from the tree of pages, which the theme renders once for each page."""
    for node in list(doctree.findall(autosummary_toc)):
        node.parent.remove(node)


def setup(app):
    """Register the filters."""
    app.connect("doctree-read", _leave_out_of_sidebar, priority=100)  # before the pages are collected
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _sources, priority=100)
    app.connect("autodoc-process-docstring", _plain_docstring, priority=900)
    app.connect("autodoc-process-signature", _plain_signature)
