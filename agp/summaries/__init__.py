"""What was learned, as text and as tables of notebooks."""

from agp.summaries._html import summary_html
from agp.summaries._summary import summary

__all__ = ["summary", "summary_html"]

# for other rooms
from agp.summaries._names import columns_seen
