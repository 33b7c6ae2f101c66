"""What newcomers ask for in their own words, and the page that the search shows first."""

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
    "multi-output": ("multi-output", "NaN"),
}


def _add(app, docname, source):
    """Put the words of a page into the index, as main entries: they come before what merely has the words."""
    if words := WORDS.get(docname):
        source[0] = "```{index} " + ", ".join(f"! {word}" for word in words) + f"\n```\n\n{source[0]}"


def _always(app, env, added, changed, removed):
    """The pages with such words: the search forgets entries of pages that a build does not read anew."""
    return [docname for docname in WORDS if docname in env.found_docs]


def missing_words(root):
    """The words that the index of the built pages in `root` does not have."""
    text = (root / "searchindex.js").read_text(encoding="utf-8")
    found = json.loads(text[text.index("{") : text.rindex("}") + 1])["indexentries"]
    return [word for words in WORDS.values() for word in words if word.lower() not in found]


def setup(app):
    """Register."""
    app.connect("source-read", _add)
    app.connect("env-get-outdated", _always)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
