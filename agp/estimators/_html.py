"""What an estimator has learned, as notebooks show it below scikit-learn's diagram."""

from typing import Any

from agp.markup import table_html
from agp.summaries import summary_html

__all__ = ["learned_html"]

FACTS = {"kernel_": "kernel", "learned_": "learned", "n_rows_seen_": "rows", "growth_reason_": "growth ended by"}
"""What else is told of a training, beside `facts`."""
TABLES = {"candidates_": "Candidates", "growth_": "Growth"}


def learned_html(estimator: Any) -> str:
    """The training, what was compared, and the model, with the names of the columns."""
    here = vars(estimator)
    more = [(title, here[name]) for name, title in FACTS.items() if name in here]
    html = [table_html("Training", [*estimator.facts().items(), *more])]
    for name, title in TABLES.items():
        if name in here:
            html.append(table_html(title, zip(*here[name].values(), strict=True), [*here[name]]))
    return "".join([*html, summary_html(estimator.model_, columns=estimator.model_columns())])
