"""The constructors of models: what they share is documented in place, and unknown names are told."""

import inspect
import pickle
import re
from typing import Annotated, TypedDict, Unpack

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp.models import Model
from agp.models._constructor import Argument, complete_constructor

X, Y = toy_data(24)
CLASSES = [agp.GPR, agp.SGPR, agp.SVGP, agp.TSVGP, agp.TVGP, agp.TNNGP, agp.SOLVEGP, agp.SOLVEGPR, agp.CaGP, agp.CGGP]
CLASSES += [agp.DeepGP]
CONSTRUCTORS = {f"{cls.__name__}.from_data": cls.from_data for cls in CLASSES}
CONSTRUCTORS["DeepGP.convolutional"] = agp.DeepGP.convolutional
SHARED = {"X", "y", "kernel", "likelihood", "mean_function", "priors", "weights", "offset", "noise"}


def entries(constructor):
    """The names that a docstring explains, in its only section of parameters, with their texts."""
    _, section = inspect.getdoc(constructor).split("\nParameters\n----------\n")
    found = re.findall(r"^(\S.*)\n((?: {4}.*\n)+)", section.partition("\n\nRaises\n------\n")[0] + "\n", re.M)
    return {name: text for names, text in found for name in names.split(", ")}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_signature_lists_every_argument_with_its_default(name):
    signature = inspect.signature(CONSTRUCTORS[name])
    first, second, *options = signature.parameters.values()
    assert (first.name, second.name) == ("X", "y")
    assert first.kind is second.kind is first.POSITIONAL_ONLY
    assert {x.kind for x in options} == {first.KEYWORD_ONLY}
    required = {x.name for x in options if x.default is x.empty}
    assert required == ({"image"} if name == "DeepGP.convolutional" else set())
    assert set(signature.parameters) >= SHARED
    assert "Annotated" not in str(signature)


def test_the_defaults_of_shared_arguments():
    found = {name: x.default for name, x in inspect.signature(agp.SGPR.from_data).parameters.items()}
    assert found.pop("inducing") == "kmeans"
    assert found.pop("seed") == 0
    assert {x for name, x in found.items() if name not in ("X", "y")} == {None}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_docstring_explains_every_argument_in_place(name):
    constructor = CONSTRUCTORS[name]
    text, explained = inspect.getdoc(constructor), entries(constructor)
    assert sorted(explained) == sorted(inspect.signature(constructor).parameters)
    assert all(len(one.split()) > 3 and one.rstrip().endswith((".", '"')) for one in explained.values())
    assert "for the arguments" not in text
    assert not re.search(r"[Ss]ee `?(SVGP|SOLVEGP|GPR|from_data|the class)", text)
    assert text.count("\nRaises\n------\n") == 1
    assert max(map(len, text.splitlines())) <= 116
    assert "TypeError, ValueError\n    If X and y are not finite floating-point arrays" in text


def test_a_source_stays_at_the_end():
    assert inspect.getdoc(agp.DeepGP.convolutional).splitlines()[-1].endswith("ECML PKDD 2019.")


def test_what_a_class_says_of_an_argument_comes_first():
    assert "size M of the first group" in entries(agp.SOLVEGP.from_data)["num_inducing"]
    assert "sequence with a kernel" in entries(agp.SVGP.from_data)["kernel"]


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_an_unknown_name_is_told_with_the_nearest(name):
    told = rf"{re.escape(name)}\(\) has no argument 'likelihod'; did you mean 'likelihood'\?"
    with pytest.raises(TypeError, match=told):
        CONSTRUCTORS[name](X, Y, likelihod=agp.Gaussian())


def test_a_name_like_none_is_told_with_all_names():
    told = r"GPR.from_data\(\) .* 'num_inducing'; its arguments are kernel, .*, priors, weights, offset, noise\.$"
    with pytest.raises(TypeError, match=told):
        agp.GPR.from_data(X, Y, num_inducing=3)
    with pytest.raises(TypeError, match=r"takes y by position; write GPR.from_data\(X, y\)\."):
        agp.GPR.from_data(X, y=Y)
    with pytest.raises(TypeError, match=r"needs y; write GPR.from_data\(X, y\)\."):
        agp.GPR.from_data(X)


def test_a_constructor_can_be_pickled():
    again = pickle.loads(pickle.dumps(agp.GPR.from_data))
    np.testing.assert_array_equal(again(X, Y).predict(X).mean, agp.GPR.from_data(X, Y).predict(X).mean)


def test_a_shared_argument_is_declared_once():
    class Parts(TypedDict, total=False):
        depth: Annotated[int, Argument("The depth in metres.", error="if the depth is negative", default=3)]

    def from_data(cls, X, y, /, *, own=1, **parts: Unpack[Parts]):
        """Build.

        Source: nobody.
        """
        return X, y, own, parts

    whole = complete_constructor(from_data)
    assert str(inspect.signature(whole)) == "(cls, X, y, /, *, own=1, depth: int = 3)"
    assert whole(agp.GPR, 1, 2) == (1, 2, 1, {"depth": 3})
    assert whole(agp.GPR, 1, 2, depth=5, own=4) == (1, 2, 4, {"depth": 5})
    assert "depth\n    The depth in metres.\n" in whole.__doc__
    assert "or if the depth is negative." in whole.__doc__
    assert whole.__doc__.endswith("\n\nSource: nobody.\n")


def test_a_constructor_without_shared_arguments_stays_as_it_is():
    def from_data(cls, X, y, /, **settings):
        """Build."""

    assert complete_constructor(from_data) is from_data
    assert "from_data" not in vars(Model)
