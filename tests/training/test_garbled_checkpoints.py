"""Checkpoints with a right digest and wrong contents: each is refused in one sentence, or trains as well as another."""

import copy
import hashlib
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from agp import SVGP, io, to_numpy, train
from agp.posteriors import Relaxed
from agp.tree import leaves
from agp.updates import Adam, Group, InverseUpdate, Plateau

STEPS = 4
CANNOT = r"run\.safetensors cannot be resumed: {}.*; name another file, or remove it to start afresh\.$"


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 2))
    return X, np.sin(2 * X[:, :1])


X, Y = data()
MODEL = SVGP.from_data(X, Y, posterior=Relaxed, num_inducing=4)
UPDATES = [Adam(0.01), InverseUpdate()]


def resumed(path):
    return train(MODEL, X, Y, steps=STEPS, updates=UPDATES, checkpoint=path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The checkpoint of a run that is done."""
    path = tmp_path_factory.mktemp("runs") / "run.safetensors"
    resumed(path)
    return path


@pytest.fixture
def path(finished, tmp_path):
    """A copy of it."""
    path = tmp_path / "run.safetensors"
    path.write_bytes(finished.read_bytes())
    return path


def parts(path):
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["agp"])  # noqa: SIM118


def write(path, arrays, structure):
    """The file with the digest that belongs to it."""
    text = json.dumps(structure)
    table = [[name, x.dtype.name, list(x.shape)] for name, x in sorted(arrays.items())]
    content = json.dumps([text, table]).encode() + b"".join(x.tobytes() for _, x in sorted(arrays.items()))
    path.write_bytes(save(arrays, {"agp": text, "sha256": hashlib.sha256(content).hexdigest()}))


def edit(path, change):
    arrays, facts = io.load_checkpoint(path)
    change(arrays, facts)
    io.save_checkpoint(path, arrays, facts)


# -- a finished run --------------------------------------------------------------------------------------------------

LEAF, Z = "process.kernel.lengthscale", "process.inducing.Z"


def with_nan(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x)


CHANGES = {
    "missing-leaf": (lambda a, f: a["model"].pop(LEAF), f"the leaf {LEAF} is missing"),
    "unknown-leaf": (lambda a, f: a["model"].update(W=np.ones(2)), "the leaf W is unknown"),
    "shape": (
        lambda a, f: a["model"].update({Z: a["model"][Z][:3]}),
        rf"the leaf {Z} has shape \[3, 2\], but \[4, 2\] in the run",
    ),
    "no-axis": (
        lambda a, f: a["model"].update({Z: a["model"][Z][0, 0]}),
        rf"the leaf {Z} has shape \[\], but",
    ),
    "dtype": (
        lambda a, f: a["model"].update({Z: a["model"][Z].astype("f4")}),
        f"the leaf {Z} has dtype float32, but float64 in the run",
    ),
    "whole": (
        lambda a, f: a["model"].update({Z: a["model"][Z].astype("i8")}),
        f"the leaf {Z} has dtype int64, but float64 in the run",
    ),
    "nan": (lambda a, f: a["model"].update({Z: with_nan(a["model"][Z])}), f"the leaf {Z} has NaN or infinite entries"),
    "negative": (lambda a, f: a["model"].update({LEAF: -a["model"][LEAF]}), f"the leaf {LEAF} is not positive"),
    "no-model": (lambda a, f: a.pop("model"), "it has no model"),
    "model-array": (lambda a, f: a.update(model=np.ones(3)), "it has no model"),
    "state-shape": (
        lambda a, f: a["states"]["0"]["first"].update({Z: np.ones(1)}),
        rf"the state 0/first/{Z} has shape \[1\], but \[4, 2\] in the run",
    ),
    "state-dtype": (
        lambda a, f: a["states"]["0"].update(count=np.asarray(4, dtype="i4")),
        "the state 0/count has dtype int32, but float64 in the run",
    ),
    "state-nan": (
        lambda a, f: a["states"]["0"]["second"].update({Z: np.full((4, 2), np.nan)}),
        f"the state 0/second/{Z} has NaN or infinite entries",
    ),
    "state-inf": (
        lambda a, f: a["states"]["0"]["second"].update({Z: np.full((4, 2), np.inf)}),
        f"the state 0/second/{Z} has NaN or infinite entries",
    ),
    "no-states": (lambda a, f: a.pop("states"), "it has no states"),
    "no-trace": (lambda a, f: a.pop("trace"), "it has no trace"),
    "trace-shape": (
        lambda a, f: a["trace"].update(bound=np.ones((4, 1))),
        "the trace of bound is not a list of at most 4 finite numbers",
    ),
    "trace-length": (lambda a, f: a["trace"].update(bound=np.ones(5)), "the trace of bound is not a list of at most 4"),
    "trace-dtype": (lambda a, f: a["trace"].update(bound=np.ones(4, "i8")), "the trace of bound is not"),
    "trace-nan": (lambda a, f: a["trace"].update(bound=np.full(4, np.nan)), "the trace of bound is not"),
    "trace-folder": (lambda a, f: a["trace"].update(bound={"x": np.ones((2, 2))}), "the trace of bound/x is not"),
    "step-text": (lambda a, f: f["progress"].update(step="4"), "its step is '4'"),
    "step-truth": (lambda a, f: f["progress"].update(step=True), "its step is True"),
    "step-negative": (lambda a, f: f["progress"].update(step=-1), "its step is -1"),
    "no-step": (lambda a, f: f["progress"].pop("step"), "its step is None"),
    "seconds": (lambda a, f: f["progress"].update(seconds=[1.0]), r"its seconds are \[1.0\]"),
    "repairs": (lambda a, f: f["progress"].update(repairs=[1]), "its repairs are not a list of messages"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_finished_run_with_wrong_contents_is_refused(kind, path):
    change, message = CHANGES[kind]
    edit(path, change)
    with pytest.raises(ValueError, match=CANNOT.format(message)):
        resumed(path)


def test_a_file_of_a_terabyte_of_nothing_is_refused_unread(path):
    size = 2**40
    header = {"x": {"dtype": "F64", "shape": [size // 8], "data_offsets": [0, size]}}
    text = json.dumps(header | {"__metadata__": {"agp": "{}", "sha256": "0" * 64}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + size)  # a hole
    with pytest.raises(
        ValueError, match=r"run\.safetensors is not a checkpoint of agp \(it has \d+ bytes, but at most"
    ):
        resumed(path)


def test_missing_states_are_other_updates(path):
    edit(path, lambda arrays, facts: arrays["states"]["0"].pop("count"))
    with pytest.raises(ValueError, match=r"run\.safetensors was written by a run with other updates or frozen leaves"):
        resumed(path)


def test_steps_beyond_the_run_are_refused(path):
    edit(path, lambda arrays, facts: facts["progress"].update(step=10**400))
    with pytest.raises(ValueError, match="holds 1000"):
        resumed(path)


@pytest.mark.parametrize("value", [10**4000, "y" * 10**6, {"a": [1]}], ids=["number", "text", "nested"])
def test_a_foreign_fact_makes_no_foreign_error_and_no_endless_message(value, path):
    edit(path, lambda arrays, facts: facts["facts"].update(seed=value))
    with pytest.raises(ValueError, match=r"run\.safetensors was written by a run with seed=") as caught:
        resumed(path)
    assert len(str(caught.value)) < 3000


class Breaks:
    """An update that fails while it is told to."""

    broken = False

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        if self.broken:
            raise ZeroDivisionError
        return model, state, {}


def test_states_that_begin_with_an_infinity_may_keep_it(tmp_path):
    path, breaks = tmp_path / "run.safetensors", Breaks()
    options = {"steps": 3, "updates": [Adam(groups={"*": Group(0.01, plateau=Plateau(0.5, 2))}), breaks]}
    expected = train(MODEL, X, Y, **options)
    breaks.broken = True
    with pytest.raises(ZeroDivisionError):
        train(MODEL, X, Y, **options, checkpoint=path)
    assert io.load_checkpoint(path)[0]["states"]["0"]["plateau"]["best"] == -np.inf
    breaks.broken = False
    assert train(MODEL, X, Y, **options, checkpoint=path).trace == expected.trace


# -- any edit --------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0])
DTYPES = st.sampled_from(["float64", "float32", "float16", "int64", "int8", "uint16", "bool"])


def places(structure, path=()):
    """The paths of everything in a structure."""
    yield path
    if isinstance(structure, (dict, list)):
        keys = list(structure) if isinstance(structure, dict) else range(len(structure))
        for key in keys:
            yield from places(structure[key], (*path, key))


def edited_structure(draw, structure):
    path = draw(st.sampled_from(list(places(structure))))
    if not path:
        return draw(JSON)
    structure = copy.deepcopy(structure)
    here = structure
    for key in path[:-1]:
        here = here[key]
    if draw(st.booleans()):
        here[path[-1]] = draw(JSON)
    else:
        del here[path[-1]]
    return structure


def edited_arrays(draw, arrays):
    arrays, name = dict(arrays), draw(st.sampled_from(sorted(arrays)))
    x = arrays.pop(name)
    kind = draw(st.sampled_from(["drop", "rename", "dtype", "flat", "cut", "fill", "grow"]))
    if kind == "rename":
        arrays[draw(st.text(min_size=1, max_size=5))] = x
    elif kind == "dtype":
        arrays[name] = np.zeros(x.shape, draw(DTYPES))
    elif kind == "flat":
        arrays[name] = x.reshape(-1)
    elif kind == "cut":
        arrays[name] = x.reshape(-1)[: draw(st.integers(0, 3))].copy()
    elif kind == "fill":
        arrays[name] = np.full(x.shape, draw(NUMBERS), x.dtype)
    elif kind == "grow":
        arrays[name] = np.stack([x, x])
    return arrays


def refused_or_sound(path):
    try:
        result = resumed(path)
    except ValueError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert result.steps == STEPS
    assert all(np.all(np.isfinite(numbers)) for numbers in result.trace.values())
    for name, value in leaves(MODEL).items():
        found = to_numpy(leaves(result.model)[name])
        assert found.shape == value.shape
        assert found.dtype == value.dtype
        assert np.all(np.isfinite(found))


@pytest.mark.long
@given(draw=st.data(), which=st.sampled_from(["structure", "arrays", "both"]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # a run may go on from sites of any size
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_any_edit_with_a_right_digest_is_refused_or_sound(draw, which, finished, path):
    arrays, structure = parts(finished)
    if which != "arrays":
        structure = edited_structure(draw.draw, structure)
    if which != "structure":
        arrays = edited_arrays(draw.draw, arrays)
    write(path, arrays, structure)
    refused_or_sound(path)


@pytest.mark.slow
@given(draw=st.data(), kind=st.sampled_from(["flip", "truncate", "insert", "remove", "zeros"]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_refused_or_harmless(draw, kind, finished, path):
    whole = bytearray(finished.read_bytes())
    at, count = draw.draw(st.integers(0, len(whole) - 1)), draw.draw(st.integers(1, 40))
    match kind:
        case "flip":
            whole[at] ^= draw.draw(st.integers(1, 255))
        case "truncate":
            del whole[at:]
        case "insert":
            whole[at:at] = draw.draw(st.binary(min_size=1, max_size=40))
        case "remove":
            del whole[at : at + count]
        case "zeros":
            whole[at : at + count] = bytes(len(whole[at : at + count]))
    path.write_bytes(bytes(whole))
    refused_or_sound(path)
