"""Summaries of models as text and as tables in notebooks."""

from agp.summaries._summary import summary, summary_html

__all__ = ["summary", "summary_html"]

# for other subpackages
from agp.summaries._summary import columns_by_kernel, unused_columns
from agp.summaries._tables import html_with_fallback, table_html, text_table
