"""What notebooks show of models, results of training and estimators: well-formed, escaped, and never an error."""

import dataclasses
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

import agp
from agp import tree
from agp.methods import METHODS, build
from agp.priors import Gamma
from agp.selection import RegressionResult
from agp.summaries import summary_html
from agp.summaries._tables import LETTERS, ROWS, html_with_fallback, table_html
from agp.training import LBFGSResult, Result

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(40, 1))
EMPTY = ("br",)
"""Elements without an end."""


class Reader(HTMLParser):
    """The rows of all tables, as lists of their cells; an error where elements are not closed in their order."""

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.titles, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "br":
            self.handle_data("\n")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "caption" in self.open:
            self.titles.append(data)
        elif self.open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    assert not reader.tags & {"style", "script", "link", "pre"}
    return reader


def cells(html):
    """The second cell of each row by the first one."""
    return {row[0]: row[1] for row in read(html).rows if len(row) > 1}


@cache
def svgp():
    return agp.SVGP.from_data(X, Y, num_inducing=7, posterior="relaxed")


# -- tables -----------------------------------------------------------------------------------------------------------


def test_everything_in_a_table_is_escaped_and_long_things_are_cut():
    rows = [["<b>", '"&"'], ["long", "x" * 1000], *([str(i), [1.23456789, True]] for i in range(ROWS))]
    html = table_html("<script>", rows, ("<i>", "_&_"))
    assert "<script>" not in html
    assert "<b>" not in html
    found = read(html)
    assert found.titles == ["<script>"]
    assert found.rows[:2] == [["<i>", " & "], ["<b>", '"&"']]
    assert len(found.rows[2][1]) == LETTERS + 4
    assert found.rows[3] == ["0", "1.2346\nyes"]
    assert found.rows[-1] == ["and 2 more"]


def test_columns_without_entries_are_left_out():
    assert read(table_html("t", [[1, np.nan, None, 2], [3, None, "", 4]], "abcd")).rows == [
        ["a", "d"],
        ["1", "2"],
        ["3", "4"],
    ]
    assert read(table_html("t", [])).rows == []


class Broken:
    def __repr__(self):
        raise RuntimeError


def test_an_error_becomes_the_text_of_the_object():
    assert html_with_fallback(lambda: 1 / 0, "<x>") == "<pre>&#x27;&lt;x&gt;&#x27;</pre>"
    assert html_with_fallback(lambda: 1 / 0, Broken()) == "<pre>Broken</pre>"


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_models_of_every_method_say_their_parts_and_leaves(method):
    gaussian = METHODS[method].gaussian_only
    likelihood = agp.Gaussian() if gaussian else agp.Bernoulli()
    y = Y if gaussian else 1.0 * (Y > 0.0)
    settings = {"kernel": "matern32", "num_inducing": 6, "num_actions": 5, "seed": 0}
    model = build(method, X, y, likelihood=likelihood, **settings)
    found = cells(model._repr_html_())
    assert found["likelihood"].startswith(type(likelihood).__name__)
    assert any("kernel" in path and "Matern32" in text for path, text in found.items())
    assert {leaf for leaf in tree.leaves(model) if not leaf.endswith("_unit")} <= set(found)


def test_a_model_says_what_the_summary_says():
    model = agp.GPR.from_data(X, Y, priors={"kernel.lengthscale": Gamma(2.0, 1.0)})
    assert model._repr_html_() == summary_html(model)
    found = read(summary_html(model, frozen="likelihood.*"))
    for line in agp.summary(model, frozen="likelihood.*").splitlines()[2:]:
        name, *_, trained = line.split()
        (row,) = (row for row in found.rows if row[0] == name)
        assert row[-1] == trained
        assert row[1] in line
    with pytest.raises(ValueError, match="no parameter matches"):
        summary_html(model, frozen="kernle.*")


def test_inducing_inputs_are_counted_and_the_posterior_has_its_kind():
    found = cells(svgp()._repr_html_())
    assert found["process.inducing"] == "Points, 7"
    assert found["process.posterior"] == "Relaxed"
    assert "[7 x 2] in" in found["process.inducing.Z"]


def test_settings_that_are_not_the_usual_ones_are_told():
    assert tree.structure(agp.RBF() + agp.Linear().on([0])) == "Sum(RBF, ActiveDims(Linear, columns=(0,)))"
    assert tree.structure(agp.Bernoulli()) == "Bernoulli"
    assert tree.structure(agp.Bernoulli(link="logit")) == "Bernoulli(link='logit')"
    assert tree.structure((agp.RBF(), None)) == "(RBF, None)"


def test_lengthscales_stand_beside_the_names_of_their_columns():
    kernel = agp.RBF() + agp.Matern32().on((2, 0)) * agp.Linear()
    model = agp.GPR.from_data(RNG.normal(size=(9, 3)), Y[:9], kernel=kernel)
    found = cells(summary_html(model, columns=["a", "<b>", "c"]))
    assert [line.split(": ")[0] for line in found["kernel.parts.0.lengthscale"].split("\n")] == ["a", "<b>", "c"]
    first = float(model.kernel.parts[1].parts[0].kernel.lengthscale[0])
    assert found["kernel.parts.1.parts.0.kernel.lengthscale"].startswith(f"c: {first:.4g}\na: ")
    assert summary_html(model) == summary_html(model, columns=["only one"])


def test_inner_layers_see_no_columns():
    model = agp.DeepGP.from_data(X, Y, num_inducing=5)
    found = cells(summary_html(model, columns=["left", "right"]))
    named = [name for name, text in found.items() if "left" in text]
    assert named
    assert all(".layers.0." in name for name in named)


def test_many_columns_are_abbreviated():
    wide = RNG.normal(size=(10, 50))
    model = agp.GPR.from_data(wide, Y[:10])
    lines = cells(summary_html(model, columns=[f"c{i}" for i in range(50)]))["kernel.lengthscale"].split("\n")
    assert len(lines) == 21
    assert lines[-1].startswith("30 more: ")
    assert cells(summary_html(model))["kernel.lengthscale"].startswith("[50] in ")


@tree.model
class Bare:
    """A class of a user: a likelihood beside an array."""

    likelihood: agp.Gaussian
    weights: agp.backend.Array = tree.param()


def test_any_tree_of_arrays_is_served():
    found = cells(summary_html(Bare(agp.Gaussian(np.asarray(0.5)), np.ones(3))))
    assert found["likelihood"] == "Gaussian"
    assert found["weights"] == "[1, 1, 1]"
    assert cells(summary_html(agp.RBF(0.5, [1.0, 2.0])))["lengthscale"] == "[1, 2]"
    assert read(summary_html(agp.RBF())).titles == ["RBF", "Leaves"]


def test_models_with_leaves_that_are_none_or_no_arrays_are_shown():
    model = svgp()
    gap = dataclasses.replace(model, process=dataclasses.replace(model.process, posterior=None))
    assert "process.posterior" not in cells(gap._repr_html_())
    assert "process.inducing.Z" in cells(tree.with_leaves(model, {"process.inducing.Z": "?"})._repr_html_())
    assert read(tree.cotangent(model)._repr_html_()).titles == ["SVGP", "Leaves"]
    assert object.__new__(agp.SVGP)._repr_html_() == "<pre>SVGP</pre>"


def test_models_of_every_library_are_shown(backend):
    model = agp.to_backend(svgp(), backend.name, device=backend.device)
    assert cells(model._repr_html_()) == cells(svgp()._repr_html_())


def test_arrays_without_numbers_have_a_shape_alone(monkeypatch):
    monkeypatch.setattr(agp.get_backend("numpy"), "is_concrete", lambda x: False)
    assert cells(svgp()._repr_html_())["process.inducing.Z"] == "[7 x 2]"
    assert cells(summary_html(svgp(), columns="ab"))["process.kernel.lengthscale"] == "[2]"


def test_arrays_that_are_traced_have_a_shape_alone():
    jax = pytest.importorskip("jax")
    seen = []

    def traced(model):
        seen.append((cells(model._repr_html_()), agp.summary(model)))
        return model

    jax.jit(traced)(agp.to_backend(svgp(), "jax"))
    ((found, text),) = seen
    assert found["process.inducing.Z"] == "[7 x 2]"
    assert "[7 x 2]" in text


def test_arrays_of_torch_may_ask_for_gradients(torch_place):
    leaves = {name: x.requires_grad_() for name, x in tree.leaves(agp.to_backend(svgp(), "torch")).items()}
    moved = tree.with_leaves(agp.to_backend(svgp(), "torch"), leaves)
    assert cells(moved._repr_html_()) == cells(svgp()._repr_html_())


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_say_how_training_ended_and_show_the_model():
    model = agp.GPR.from_data(X, Y)
    fitted = agp.fit(model, X, Y)
    found = cells(fitted._repr_html_())
    assert found["message"] == fitted.message
    assert found["converged"] == "yes"
    assert float(found["last bound"]) == pytest.approx(fitted.trace["bound"][-1], rel=1e-4)
    assert "kernel.lengthscale" in found

    found = read(agp.train(svgp(), X, Y, steps=2)._repr_html_())
    assert found.titles == ["Result", "SVGP", "Leaves"]
    assert ["steps", "2"] in found.rows

    found = cells(agp.fit_lbfgs(model, X, Y, max_iterations=3)._repr_html_())
    assert {"message", "evaluations", "bounds"} <= set(found)


@pytest.mark.slow
def test_what_was_compared_is_a_table():
    result = agp.fit_regression(X, Y)
    found = read(result._repr_html_())
    assert found.titles[:3] == ["RegressionResult", "Candidates", "Stages"]
    assert ["message", result.message] in found.rows
    assert {one.kernel for one in result.candidates} <= {row[0] for row in found.rows}
    assert "nan" not in "".join(cell for row in found.rows for cell in row)

    grown = agp.fit_growing(agp.SGPR.from_data(X, Y, num_inducing=5), X, Y, most=10)
    assert "Rounds" in read(grown._repr_html_()).titles


def test_results_tell_what_training_left():
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="whitened")
    result = agp.train(model, X, Y, steps=2, updates=agp.recipe(model, 2, frozen="likelihood.*"))
    rows = {row[0]: row[-1] for row in read(result._repr_html_()).rows}
    assert rows["likelihood.noise_variance"] == "frozen"
    assert rows["process.kernel.variance"] == "yes"
    assert {row[0]: row[-1] for row in read(agp.GPR.from_data(X, Y)._repr_html_()).rows}["X"] == "constant"


@pytest.mark.parametrize(("count", "shown"), [(12, 12), (13, 12)])
def test_long_lists_are_cut_after_twelve_entries(count, shown):
    found = cells(LBFGSResult(None, 0, 0.0, bounds=[float(i) for i in range(count)])._repr_html_())
    assert ("more" in found["bounds"]) is (count > shown)
    assert f"{shown - 1}" in found["bounds"]


def test_results_that_hold_little_are_shown():
    result = LBFGSResult(None, 0, 0.0, bounds=[float(i) for i in range(100)], rejections={"<no bound>": 2})
    found = cells(result._repr_html_())
    assert found["bounds"].endswith("and 88 more")
    assert found["rejections"] == "<no bound>: 2"
    assert read(Result({"a": 1}, 3, 0.5)._repr_html_()).titles == ["Result"]
    assert read(RegressionResult(svgp(), 0, 0.0)._repr_html_()).titles == ["RegressionResult", "SVGP", "Leaves"]
    assert object.__new__(Result)._repr_html_().startswith("<table")
