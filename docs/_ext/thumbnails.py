"""Add alternative texts to the thumbnails of the gallery, which sphinx-gallery leaves empty."""

import re

THUMBNAIL = re.compile(r":alt:(\n(?:(?!:alt:).)*?<div class=\"sphx-glr-thumbnail-title\">(.*?)</div>)", re.DOTALL)


def described(text):
    """Return the text of a gallery's index, with each example's title as the alternative text of its thumbnail."""
    return THUMBNAIL.sub(r":alt: Thumbnail: \2\1", text)


def setup(app):
    """Register the filter."""
    app.connect("source-read", _describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _describe(app, docname, source):
    if docname.startswith("gallery_built/"):
        source[0] = described(source[0])
