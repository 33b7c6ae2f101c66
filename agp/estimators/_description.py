"""Descriptions of estimators: their facts, and the tables that notebooks show."""

from typing import Any

from sklearn.utils.validation import check_is_fitted

from agp.summaries import html_with_fallback, summary_html, table_html, unused_columns

FACTS = {"kernel_": "kernel", "learned_": "learned", "n_rows_seen_": "rows", "growth_reason_": "growth ended by"}
"""The attributes that notebooks show in addition to `facts`, and their labels."""
MAX_SHOWN = 8
"""The maximum number of levels whose noise is shown."""
TABLES = {"candidates_": "Candidates", "growth_": "Growth"}


def describe(estimator: Any) -> dict[str, str]:
    """Describe the estimator, its labels, and how its training ended."""
    check_is_fitted(estimator, "model_")
    here = vars(estimator)
    kind = f"{type(estimator).__name__}, method {estimator.method_}, missing cells: {estimator.missing}"
    likelihood = here["likelihood"]
    name = likelihood if isinstance(likelihood, str) else type(likelihood).__name__
    transform = f", transform: {here['transform_'].short_name}" if here.get("transform_") else ""
    found = {"estimator": f"{kind}, likelihood: {name}{transform}"}
    if "order_" in here:
        found["labels"] = " < ".join(str(here["classes_"][k]) for k in here["order_"])
    elif "classes_" in here:
        found["labels"] = ", ".join(map(str, here["classes_"]))
    if here.get("left_out_"):
        found["left out"] = ", ".join(map(str, here["left_out_"]))
    if "noise_by_" in here:
        found["noise"] = f"by {here['noise_by']!r}, standard deviations: {_deviations(here['noise_by_'])}"
    if unused := _list_unused(estimator):
        found["not used"] = ", ".join(unused)
    found["rows"] = f"{'' if here['model_']._holds_data else 'not '}stored in the model"
    if "bound_" in here:
        ending = "converged" if estimator.converged_ else "not converged"
        reason = here.get("ending_", "") if not estimator.converged_ else ""
        because = f": {reason}" if reason else ""
        found["training"] = f"{ending} after {estimator.n_iter_:,} steps, bound {estimator.bound_:.6g}{because}"
    return found


def _deviations(variances: dict[Any, float]) -> str:
    """Format the standard deviations of the first levels."""
    shown = [f"{'missing' if x is None else x} {variance**0.5:.4g}" for x, variance in variances.items()]
    return ", ".join([*shown[:MAX_SHOWN], *(["..."] if len(shown) > MAX_SHOWN else [])])


def _list_unused(estimator: Any) -> list[str]:
    """Return the names of the table columns on which the model does not depend."""
    names, sources = estimator.model_columns(), estimator.model_sources()
    unused = unused_columns(estimator.model_, tuple(names))
    used = {source for name, source in zip(names, sources, strict=True) if name not in unused}
    return [str(source) for source in dict.fromkeys(sources) if source not in used]


def learned_html(estimator: Any) -> str:
    """Return the HTML tables that notebooks show below scikit-learn's diagram; nothing before training."""

    def tables() -> str:
        here = vars(estimator)
        more = [(title, here[name]) for name, title in FACTS.items() if name in here]
        html = [table_html("Training", [*describe(estimator).items(), *more])]
        for name, title in TABLES.items():
            if name in here:
                html.append(table_html(title, zip(*here[name].values(), strict=True), [*here[name]]))
        return "".join([*html, summary_html(estimator.model_, columns=estimator.model_columns())])

    return html_with_fallback(tables, estimator) if "model_" in vars(estimator) else ""
