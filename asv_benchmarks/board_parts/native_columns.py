"""Columns for libraries that take categories as they are."""

from typing import Any

from skrub import TableVectorizer, ToCategorical


def vectorizer() -> TableVectorizer:
    """Return skrub's conversion of dates and numbers, which leaves categories as they are, however many there are."""
    return TableVectorizer(low_cardinality=ToCategorical(), high_cardinality=ToCategorical())


def as_text(X: Any) -> Any:
    """Convert categories to text, with a missing cell as a category of its own."""
    return X.assign(
        **{
            name: X[name].astype(object).where(X[name].notna(), "missing").astype(str)
            for name in X.columns
            if X[name].dtype == "category"
        }
    )
