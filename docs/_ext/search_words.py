"""Search terms of new users, and the pages that the search lists first for these terms."""

import json

WORDS = {
    "saving": ("save model", "load model"),
    "guide/uncertainty": ("error bars", "confidence intervals", "calibration"),
    "guide/gpus": ("CUDA",),
    "numerics": ("not positive definite", "jitter", "Cholesky"),
    "estimators": ("missing values", "data frame", "scikit-learn"),
    "shell": ("CSV", "command line"),
    "growing": ("many rows", "out of memory"),
    "guide/classes": ("classification",),
    "guide/categories": ("categorical inputs", "random effects"),
    "multi-output": ("multi-output", "NaN"),
}


def _add(app, docname, source):
    """Add a page's terms to the index as main entries, which precede pages that only contain the terms."""
    if words := WORDS.get(docname):
        source[0] = "```{index} " + ", ".join(f"! {word}" for word in words) + f"\n```\n\n{source[0]}"


def _always(app, env, added, changed, removed):
    """Return the pages with such terms; a build drops the index entries of pages that it does not read again."""
    return [docname for docname in WORDS if docname in env.found_docs]


def missing_words(root):
    """Return the terms that are missing from the index of the built pages in `root`."""
    text = (root / "searchindex.js").read_text(encoding="utf-8")
    found = json.loads(text[text.index("{") : text.rindex("}") + 1])["indexentries"]
    return [word for words in WORDS.values() for word in words if word.lower() not in found]


def setup(app):
    """Register both functions."""
    app.connect("source-read", _add)
    app.connect("env-get-outdated", _always)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
