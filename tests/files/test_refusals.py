"""Files that are no models, or not any more: each is refused in one sentence, and no code of theirs runs."""

import dataclasses
import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import STRICT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_cases import X, Y, assert_same, model_of, structure_of
from safetensors.numpy import load as load_arrays
from test_container import sealed

import agp
from agp import backend as backends
from agp import tree
from agp.backend import Array
from agp.io import _atomic
from agp.kernels import RBF, Matern32

SMALL = agp.GPR.from_data(X[:5], Y[:5])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a file."""
    file = tmp_path_factory.mktemp("whole") / "model.safetensors"
    agp.save(SMALL, file)
    return file.read_bytes()


def refused(path, match=r"model\.safetensors is not a model of agp \(.+\); name another file\.$", **options):
    """The message with which a file is refused: one sentence."""
    with pytest.raises(agp.errors.FileError, match=match) as caught:
        agp.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 600
    return message


def rewritten(path, change, model=SMALL):
    """The file with an edited structure and arrays, and the digest that belongs to them."""
    agp.save(model, path)
    structure, arrays = structure_of(path), load_arrays(path.read_bytes())
    change(structure, arrays)
    path.write_bytes(sealed(arrays, json.dumps(structure)))


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_flipped_bit_is_refused(path, whole):
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(whole), 200, replace=False):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(bytes(broken))
        refused(path)


def test_every_truncation_is_refused(path, whole):
    for size in np.random.default_rng(1).choice(len(whole), 100, replace=False):
        path.write_bytes(whole[:size])
        refused(path)


def test_what_is_appended_is_refused(path, whole):
    path.write_bytes(whole + b"\0")
    refused(path)


def test_foreign_files_are_refused(path, tmp_path):
    refused(path, match=r"^there is no file .*model\.safetensors; name another file\.$")
    for content in (b"", b"text", b"\x80\x04}.", os.urandom(1000)):
        path.write_bytes(content)
        refused(path)
    with path.open("wb") as file:
        np.savez(file, x=np.ones(3))
    refused(path)
    refused(tmp_path, match="is not a model of agp")


def test_a_safetensors_file_of_something_else_is_refused(path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(3)}, path)
    assert "it is a safetensors file from another program" in refused(path)


def test_a_checkpoint_is_no_model_and_a_model_no_checkpoint(path):
    agp.train(SMALL, X[:5], Y[:5], steps=1, checkpoint=path)
    refused(path, match=r"is a checkpoint, not a model; resume it with agp\.train\(\.\.\., checkpoint=\.\.\.\)\.$")
    agp.save(SMALL, path)
    with pytest.raises(agp.errors.FileError, match="it does not hold a checkpoint"):
        agp.train(SMALL, X[:5], Y[:5], steps=1, checkpoint=path)


@pytest.mark.parametrize("version", [2, 10**30])
def test_a_newer_format_is_refused(version, path):
    rewritten(path, lambda s, a: s.update(version=version, model={"new": 1}))
    refused(path, match=r"has format \d+, but this version of agp reads format 1; upgrade agp\.$")


# -- contents with a right digest -------------------------------------------------------------------------------------


def at(structure, *names):
    """The node of a part."""
    node = structure["model"]
    for name in names:
        node = node["fields"][name]
    return node["fields"]


CHANGES = {
    "no-version": (lambda s, a: s.pop("version"), "it holds 'model' of version None"),
    "old-version": (lambda s, a: s.update(version=0), "of version 0"),
    "kind": (lambda s, a: s.update(kind=["x"]), r"it holds \['x'\] of version 1"),
    "no-facts": (lambda s, a: s.pop("facts"), "it holds no model"),
    "no-model": (lambda s, a: s.pop("model"), "it holds no model"),
    "model-text": (lambda s, a: s.update(model="GPR"), "has 'GPR' instead of a part of a model"),
    "class-number": (lambda s, a: s["model"].update({"class": 3}), "has 3 instead of the name of a class"),
    "origin": (lambda s, a: s.update(backend=3), "its backend or its device is not text"),
    "extra-array": (lambda s, a: a.update(W=np.ones(2)), "does not contain the array W"),
    "missing-array": (lambda s, a: a.pop("X"), "it has no array X"),
    "unnamed-array": (lambda s, a: at(s).pop("y"), "needs y|does not contain the array y"),
    "null-leaf": (lambda s, a: at(s, "kernel").update(variance=None), "does not contain the array kernel.variance"),
    "text-leaf": (lambda s, a: at(s, "kernel").update(variance="x"), "kernel.variance is 'x', which is not an array"),
    "number-leaf": (
        lambda s, a: (at(s, "kernel").update(variance=1.0), a.pop("kernel.variance")),
        "the leaf kernel.variance has no array",
    ),
    "infinite-leaf": (
        lambda s, a: (at(s, "kernel").update(variance=float("inf")), a.pop("kernel.variance")),
        "its structure contains Infinity",
    ),
    "missing-leaf": (
        lambda s, a: (at(s, "kernel").update(variance=None), a.pop("kernel.variance")),
        "the leaf kernel.variance has no array",
    ),
    "unknown-field": (lambda s, a: at(s, "kernel").update(hidden=1), "RBF has no field hidden"),
    "wrong-part": (
        lambda s, a: at(s).update(kernel={"class": "agp.means.ZeroMean", "fields": {}}),
        r"kernel is ZeroMean\(\), which GPR does not accept",
    ),
    "wrong-setting": (lambda s, a: at(s).update(priors=3), "priors is 3, which GPR does not accept"),
    "wrong-prior": (
        lambda s, a: at(s).update(
            priors=[["kernel.variance", {"class": "agp.priors.Gamma", "fields": {"concentration": -1, "rate": 1}}]]
        ),
        "concentration of Gamma is -1, but must be positive and finite",
    ),
    "prior-of-nothing": (
        lambda s, a: at(s).update(priors=[["nothing", {"class": "agp.priors.Normal", "fields": {}}]]),
        "no parameter matches 'nothing'",
    ),
    "abstract": (
        lambda s, a: at(s).update(kernel={"class": "agp.kernels.Kernel", "fields": {}}),
        None,
    ),
    "nan": (lambda s, a: a["X"].__setitem__((0, 0), np.nan), "the leaf X is not real and finite"),
    "negative": (
        lambda s, a: a.update({"kernel.variance": np.asarray(-1.0)}),
        "the leaf kernel.variance is not positive and finite",
    ),
    "dtype": (lambda s, a: a.update(y=a["y"].astype("f4")), "y has dtype float32, kernel.variance has float64"),
    "whole-numbers": (lambda s, a: a.update({k: np.ones(x.shape, "i8") for k, x in a.items()}), "dtype int64"),
    "rows": (lambda s, a: a.update(y=a["y"][:3]), "X has 5 rows, but y has 3"),
    "columns": (
        lambda s, a: a.update({"kernel.lengthscale": np.ones(3)}),
        ".",
    ),
    "axes": (lambda s, a: a.update(y=a["y"][:, 0]), r"y has shape \(5,\), but must have shape \[N, P\]"),
    "noise": (
        lambda s, a: a.update({"likelihood.noise_variance": np.ones(1)}),
        "GPR uses one noise_variance for all outputs",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_wrong_contents_are_refused(kind, path):
    change, why = CHANGES[kind]
    rewritten(path, change)
    if why is None:
        refused(path, match="has a part of the class agp.kernels.Kernel, which this version of agp does not have; upg")
    else:
        refused(path, match=rf"is not a model of agp \(.*({why}).*\); name another file\.$")


def test_truth_values_are_no_numbers(path):
    model = model_of("likelihood-bernoulli-logit")
    rewritten(path, lambda s, a: at(s, "likelihood").update(points=True), model)
    refused(path, match=r"likelihood.points is True, which Bernoulli does not accept")
    rewritten(path, lambda s, a: at(s, "likelihood").update(points=2.5), model)
    refused(path, match=r"likelihood.points is 2.5, which Bernoulli does not accept")
    rewritten(path, lambda s, a: at(s, "likelihood").update(points=-2), model)
    refused(path, match=r"points is -2, but must be a whole number")
    rewritten(path, lambda s, a: at(s, "likelihood").update(link="cauchit"), model)
    refused(path, match=r"likelihood.link is 'cauchit', which Bernoulli does not accept")


def test_a_part_of_another_kind_is_refused_where_the_declared_class_is_generic(path):
    def change(structure, arrays):
        at(structure, "process").update(posterior={"class": "agp.means.ZeroMean", "fields": {}})
        for name in [name for name in arrays if name.startswith("process.posterior.")]:
            arrays.pop(name)

    rewritten(path, change, model_of("svgp-whitened"))
    refused(path, match=r"process.posterior is ZeroMean\(\), which Sparse does not accept")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["svgp-whitened", "svgp-marginal", "svgp-dual", "deep", "solvegp", "tvgp", "tnngp", "cagp"]
)
def test_leaves_of_other_shapes_are_refused_or_predict(name, path):
    model = model_of(name)
    for leaf, x in tree.leaves(model).items():
        if x.ndim:
            rewritten(path, lambda s, a, leaf=leaf: a.update({leaf: np.concatenate([a[leaf], a[leaf]])}), model)
            refused_or_sound(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
EDITED = {name: model_of(name) for name in ("svgp-relaxed", "cagp-capped", "stack", "kernel-active")}


def places(structure, here=()):
    yield here
    if isinstance(structure, (dict, list)):
        for key in structure if isinstance(structure, dict) else range(len(structure)):
            yield from places(structure[key], (*here, key))


def edit(draw, structure, arrays):
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(arrays)))
        x = arrays[name]
        changed = {
            "flat": lambda: x.reshape(-1),
            "cut": lambda: x.reshape(-1)[: draw(st.integers(0, 3))].copy(),
            "fill": lambda: np.full(x.shape, draw(st.sampled_from([np.nan, np.inf, -1.0, 0.0]))),
            "grow": lambda: np.stack([x, x]),
            "dtype": lambda: np.zeros(x.shape, draw(st.sampled_from(["f4", "f2", "i8", "?"]))),
        }
        arrays[name] = changed[draw(st.sampled_from(sorted(changed)))]()
        return
    *front, last = draw(st.sampled_from([place for place in places(structure) if place]))
    for key in front:
        structure = structure[key]
    if draw(st.booleans()):
        structure[last] = draw(JSON)
    else:
        del structure[last]


def refused_or_sound(path):
    """Refused in one sentence, or a model that predicts finite numbers, or says in its own words why it cannot."""
    try:
        model = agp.load(path)
    except agp.errors.FileError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert all(np.all(np.isfinite(x)) for x in tree.leaves(model).values() if not isinstance(x, float))
    if isinstance(model, agp.models.Model):
        try:
            found = model.predict(np.zeros((1, model._width), dtype=model._reference()[1].dtype))
        except ArithmeticError:
            return
        assert np.all(np.isfinite(found.mean))
        assert found.variance.shape == (1, model.outputs)


@pytest.mark.long
@given(draw=st.data(), name=st.sampled_from(sorted(EDITED)))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_any_edit_with_a_right_digest_is_refused_or_sound(draw, name, path):
    rewritten(path, lambda s, a: edit(draw.draw, s, a), EDITED[name])
    refused_or_sound(path)


# -- classes ----------------------------------------------------------------------------------------------------------


@tree.model
class Mine(agp.kernels.Kernel):
    """A constant, in the hand of a user."""

    variance: Array = tree.param(agp.tree.POSITIVE)
    power: int = 2
    note: tuple = ("a", (1, 2.5, None))

    def _constant(self):
        return agp.Constant(self.variance**self.power)

    def __call__(self, X, Z=None, /):
        return self._constant()(X) if Z is None else self._constant()(X, Z)

    def diag(self, X, /):
        return self._constant().diag(X)

    def from_data(self, X, variance, /):
        return self

    def check(self, width, /):
        """Every width will do."""


@dataclasses.dataclass(frozen=True)
class Flat(agp.priors.Prior):
    """A prior that says nothing."""

    height: float = 1.0

    def _entries(self, x):
        return 0.0 * x, lambda: 0.0 * x


def own():
    kernel = Mine(np.asarray(0.8), 3) + RBF(np.asarray(0.5), np.asarray(1.1))
    noise = agp.Gaussian(np.asarray(0.1))
    return agp.GPR(kernel, noise, X=X, y=Y, priors=(("noise_variance", Flat(2.0)),))


def test_classes_of_a_user_are_handed_over(path):
    model = own()
    agp.save(model, path)
    found = agp.load(path, classes=(Mine, Flat))
    assert_same(found, model)
    assert found.predict(X).mean.tobytes() == model.predict(X).mean.tobytes()
    name = f"{__name__}.Mine"
    refused(
        path,
        match=rf"model\.safetensors has a part of the class {name}, which is not a class of agp; pass it: "
        r"agp\.load\(\.\.\., classes=\(Mine,\)\)\.$",
    )


def test_a_class_may_have_moved_to_another_module(path):
    agp.save(own(), path)
    text = path.read_bytes()
    structure, arrays = structure_of(path), load_arrays(text)
    moved = json.dumps(structure).replace(f"{__name__}:", "__main__:")
    path.write_bytes(sealed(arrays, moved))
    assert_same(agp.load(path, classes=[Mine, Flat]), own())


def test_a_file_imports_no_module(path, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trap:RBF", "trap.RBF", "agp.trap.RBF", "os:system", "builtins:eval", "agp.kernels.os", "trap"):
        rewritten(path, lambda s, a, name=name: s["model"].update({"class": name}))
        refused(path, match="has a part of the class")
        assert "trap" not in sys.modules
    rewritten(path, lambda s, a: s.update(backend="trap"))
    refused(path, match=r"was written with trap, which is not available here; name another library, such as")
    assert "trap" not in sys.modules


@pytest.mark.slow
def test_loading_imports_nothing_at_all(path):
    agp.save(SMALL, path)
    program = (
        "import sys, agp, numpy\nagp.save(agp.load({0!r}), {0!r})\nbefore = set(sys.modules)\n"
        "agp.load({0!r})\nassert set(sys.modules) == before, set(sys.modules) - before\n"
        "assert not {{'torch', 'jax', 'pickle5'}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program.format(str(path))], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((3,), r"classes contains 3, which is not a model class; decorate it with @agp\.tree\.model\.$"),
        ((int,), "classes contains <class 'int'>, which is not a model class"),
        (Mine, r"classes is Mine, but must be a tuple of classes; write classes=\(Mine,\)\.$"),
    ],
)
def test_classes_that_are_none_are_refused(classes, message, path, whole):
    path.write_bytes(whole)
    with pytest.raises(TypeError, match=message):
        agp.load(path, classes=classes)


# -- what cannot be saved ---------------------------------------------------------------------------------------------


@tree.model
class Holds:
    """Anything."""

    what: object = None
    parts: tuple = ()


class Other:
    """No model."""


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (lambda x: x, "builtins.function"),
        (np.ones(2), "numpy.ndarray"),
        ({"a": 1}, "builtins.dict"),
        (1j, "builtins.complex"),
        (Other(), r".*\.Other"),
        (RBF, "abc.ABCMeta"),
        (np.float64, "builtins.type"),
    ],
)
def test_a_setting_that_no_file_can_hold_is_named(what, name, path):
    for model, place in ((Holds(what), "what"), (Holds(parts=(1, Holds(what))), "parts.1.what")):
        with pytest.raises(TypeError, match=rf"^{place} cannot be saved, because it is {name}; files hold numbers, "):
            agp.save(model, path)
    assert not path.exists()


def test_the_declaration_of_an_array_is_named(path):
    with pytest.raises(TypeError, match=r"what cannot be saved, .*; declare the field with agp\.tree\.constant\(\) or"):
        agp.save(Holds(np.eye(2)), path)


@pytest.mark.parametrize(
    "what", [float("inf"), float("nan"), -0.0, 10**30, True, "", "array", "é\0", (), ((),), 1e-320]
)
def test_every_other_setting_comes_back(what, path):
    agp.save(Holds(what, (what, None)), path)
    found = agp.load(path, classes=(Holds,))
    assert repr(found) == repr(Holds(what, (what, None)))
    assert type(found.what) is type(what)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            3.0,
            r"^agp\.save takes a model, a part of a model, or an estimator of agp\.estimators, not builtins\.float\.$",
        ),
        (RBF, r"not the class agp\.kernels\._stationary\.RBF\.$"),
        (np.ones(3), r"not numpy\.ndarray\.$"),
        (agp.priors.Gamma(1.0, 1.0), r"not agp\.priors\._densities\.Gamma\.$"),
    ],
)
def test_what_is_no_model_is_not_saved(model, message, path):
    with pytest.raises(TypeError, match=message):
        agp.save(model, path)


def test_a_broken_model_is_not_saved(path):
    broken = {
        "the model cannot be saved: the leaf X is not real and finite": {"X": np.full_like(SMALL.X, np.nan)},
        "the model cannot be saved: the leaf kernel.variance is not positive": {"kernel.variance": np.asarray(-1.0)},
        "the model cannot be saved: X has 5 rows, but y has 4": {"y": SMALL.y[:4]},
    }
    for message, leaves in broken.items():
        with pytest.raises(ValueError, match=message):
            agp.save(tree.with_leaves(SMALL, leaves), path)
    with pytest.raises(TypeError, match="X is a array_api_strict array, but kernel.variance is a numpy array"):
        agp.save(tree.with_leaves(SMALL, {"X": STRICT.array(SMALL.X)}), path)
    with pytest.raises(ValueError, match=r"the leaf variance is not finite"):
        agp.save(RBF(float("nan")), path)
    assert not path.exists()


def test_a_model_that_cannot_be_factorised_is_saved_all_the_same(path):
    model = tree.with_leaves(SMALL, {"likelihood.noise_variance": np.asarray(1e-300), "X": np.ones_like(SMALL.X)})
    agp.save(model, path)
    assert_same(agp.load(path), model)


# -- writing ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_leaves_the_old_file(path, monkeypatch):
    agp.save(SMALL, path)
    old = path.read_bytes()

    def full(_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_atomic.os, "fsync", full)
    with pytest.raises(
        agp.errors.FileError,
        match=r"model\.safetensors could not be written \(No space left on device\); make room or name another file\.$",
    ):
        agp.save(Matern32(0.5, 1.0), path)
    assert path.read_bytes() == old
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_folder_without_permission_is_named(path, monkeypatch):
    agp.save(SMALL, path)

    def refusing(*_args, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_atomic.os, "open", refusing)
    with pytest.raises(agp.errors.FileError, match=r"model\.safetensors could not be written \(Permission denied\)"):
        agp.save(Matern32(0.5, 1.0), path)
    monkeypatch.undo()
    assert_same(agp.load(path), SMALL)


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for place, why in (("absent/model", "No such file or directory"), ("file/model", "Not a directory")):
        with pytest.raises(agp.errors.FileError, match=rf"{place} could not be written \({why}\)"):
            agp.save(SMALL, tmp_path / place)
    with pytest.raises(agp.errors.FileError, match="folder, because it is a folder; name an ordinary file"):
        agp.save(SMALL, tmp_path / "folder")


def test_a_file_is_replaced_as_a_whole(path):
    agp.save(SMALL, path)
    agp.save(Matern32(0.5, 1.0), path)
    assert repr(agp.load(path)) == repr(Matern32(0.5, 1.0))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# -- places -----------------------------------------------------------------------------------------------------------


def test_a_library_that_is_not_here_is_named(path, monkeypatch):
    agp.save(STRICT.move(SMALL), path)

    def missing(name):
        if name == "array_api_strict":
            msg = "not installed"
            raise agp.errors.BackendError(msg)
        return backends.get_backend(name)

    monkeypatch.setattr("agp.io._model.get_backend", missing)
    refused(path, match=r"was written with array_api_strict, which is not available here; name another library, such")
    assert_same(agp.load(path, backend="numpy"), SMALL)


def test_a_device_that_is_not_here_is_named(path):
    pytest.importorskip("torch")
    rewritten(path, lambda s, a: s.update(device="cuda:7"))
    refused(path, match=r"was written on the device 'cuda:7' of numpy, but numpy has only cpu here; choose a device\.$")
    assert_same(agp.load(path, device="cpu"), SMALL)
    assert_same(agp.load(path, backend="torch"), SMALL)


def test_an_unknown_backend_is_the_users(path, whole):
    path.write_bytes(whole)
    with pytest.raises(agp.errors.BackendError, match="unknown backend 'tensorflow'; choose from"):
        agp.load(path, backend="tensorflow")


def test_a_number_that_another_type_cannot_hold_is_refused(path):
    tiny = tree.with_leaves(SMALL, {"kernel.variance": np.asarray(1e-60)})
    agp.save(tiny, path)
    refused(path, match=r"the leaf kernel.variance is not positive and finite", dtype="float32")
