"""Checkpoints: a run that was killed gives the numbers of one that was not; other files are refused."""

import io as streams
import pickle
import re

import numpy as np
import pytest
from safetensors import safe_open

from agp import GPR, SVGP, TSVGP, CaGP, Gaussian, io, to_backend, to_numpy, train
from agp.actions import ConjugateGradients, DenseActions, FixedActions
from agp.backend import backend_of
from agp.errors import Interrupted
from agp.kernels import Matern32
from agp.posteriors import Relaxed, Whitened
from agp.tree import leaves, with_leaves
from agp.updates import ActionsUpdate, Adam, InverseUpdate

METHODS = [pytest.param(Whitened, id="whitened"), pytest.param(Relaxed, id="relaxed")]


class Killed(Exception):
    pass


def kill_at(step):
    def callback(progress):
        if progress.step == step:
            raise Killed

    return callback


def interrupt_at(step):
    def callback(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return callback


def stop_at(step):
    return lambda progress: progress.step == step


def data(library="numpy", dtype="float64"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(40, 2))
    return to_backend(X, library, dtype=dtype), to_backend(y, library, dtype=dtype)


def sparse(X, y, posterior=Relaxed, num_inducing=6, **options):
    return SVGP.from_data(X, y, posterior=posterior, num_inducing=num_inducing, **options)


def assert_same(result, expected):
    assert result.steps == expected.steps
    assert result.trace == expected.trace
    for name, value in leaves(expected.model).items():
        np.testing.assert_array_equal(to_numpy(leaves(result.model)[name]), to_numpy(value), err_msg=name)


# -- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("killed_at", [4, 11, 17, 24])
def test_a_killed_run_resumes_to_the_same_bits(killed_at, posterior, dtype, tmp_path):
    X, y = data(dtype=dtype)
    model = sparse(X, y, posterior)
    options = {"steps": 25, "batch_size": 8, "seed": 4}
    expected = train(model, X, y, **options)
    options |= {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 5}
    with pytest.raises(Killed):
        train(model, X, y, **options, callbacks=[kill_at(killed_at)])
    assert_same(train(model, X, y, **options), expected)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries_resume_to_the_same_bits(library, tmp_path):
    pytest.importorskip(library)
    X, y = data(library)
    model = sparse(X, y)
    options = {"steps": 12, "batch_size": 8}
    expected = train(model, X, y, **options)
    options |= {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 4}
    with pytest.raises(Killed):
        train(model, X, y, **options, callbacks=[kill_at(6)])
    assert_same(train(model, X, y, **options), expected)


def lying_otherwise(x, how, library):
    """The same numbers in another layout."""
    if how == "columns":
        return to_backend(np.ascontiguousarray(x.T), library).mT
    if how == "gaps":
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
        wide[..., ::2] = x
        return to_backend(wide, library)[..., ::2]
    return to_backend(x, library)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("how", ["rows", "columns", "gaps"])
@pytest.mark.parametrize("kind", ["dense", "policy", "sites"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_of_any_layout_resume_to_the_same_bits(library, kind, how, dtype, tmp_path):
    # files hold row after row; sums and products of what lies otherwise are rounded in another way
    pytest.importorskip(library)
    policy = ConjugateGradients(5)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        host = rng.normal(size=(35, 6)).astype(dtype)
        X, y = (lying_otherwise(x, how, library) for x in (host, np.sin(2.0 * host[:, :1])))
        if kind == "sites":
            model, updates = TSVGP.from_data(X, y, num_inducing=6), None
        elif kind == "policy":
            model, updates = CaGP.from_data(X, y, policy=policy), [ActionsUpdate(policy), Adam(0.05)]
        else:
            S = lying_otherwise(rng.normal(size=(35, 5)).astype(dtype), how, library)
            model, updates = CaGP.from_data(X, y, actions=DenseActions(S)), None
        options = {"steps": 6, "updates": updates}
        expected = train(model, X, y, **options)
        options |= {"checkpoint": tmp_path / f"{seed}.safetensors", "checkpoint_every": 2}
        train(model, X, y, **options, callbacks=[stop_at(3)])
        assert_same(train(model, X, y, **options), expected)


class Turns:
    """An update that leaves arrays in the order of columns, and tells whether it finds some that lie row after row."""

    name = "process.process.inducing.Z"

    def init(self, model):
        return {"nested": {"Z": self.turned(leaves(model)[self.name])}}

    @staticmethod
    def turned(x):
        return to_backend(np.ascontiguousarray(to_numpy(x).T), backend_of(x).name).mT

    def __call__(self, model, batch, state):
        found = leaves(model)[self.name], state["nested"]["Z"]
        first, second = map(self.turned, found)
        info = {"rows": found, "turned": (first.mT, second.mT)}
        seen = {name: float(all(to_numpy(x).flags.c_contiguous for x in several)) for name, several in info.items()}
        numbers = {name: backend_of(first).xp.asarray(x) for name, x in seen.items()}
        return with_leaves(model, {self.name: first}), {"nested": {"Z": second}}, numbers


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_every_step_finds_the_layout_that_a_file_has(library):
    pytest.importorskip(library)
    X, y = data(library)
    found = train(sparse(X, y), X, y, steps=3, updates=[Turns()])
    assert found.trace == {"rows": [1.0] * 3, "turned": [1.0] * 3}
    assert all(to_numpy(x).flags.c_contiguous for x in leaves(found.model).values())


def test_a_policy_that_comes_to_choose_another_number_of_actions_resumes(tmp_path):
    X, y = data()
    sizes = iter([2, 3, 3, 4, 4])

    class Growing:
        def __call__(self, model):
            return FixedActions(np.eye(40)[:, : next(sizes)])

        def __repr__(self):
            return "Growing()"

    model = CaGP.from_data(X, y, policy=Growing())
    options = {"updates": [ActionsUpdate(Growing()), Adam(0.05)], "checkpoint": tmp_path / "run.safetensors"}
    train(model, X, y, steps=2, **options)
    found = train(model, X, y, steps=4, **options)
    assert found.model.actions.count == 4
    sizes = iter([3, 3, 4, 4])
    del options["checkpoint"]
    assert_same(train(model, X, y, steps=4, **options), found)


@pytest.mark.parametrize("shape", [(39, 2), (40, 0), (40, 41), (2,)], ids=str)
def test_actions_that_do_not_fit_the_model_are_refused(shape, tmp_path):
    X, y = data()
    policy, path = ConjugateGradients(3), tmp_path / "run.safetensors"
    model, updates = CaGP.from_data(X, y, policy=policy), [ActionsUpdate(policy), Adam(0.05)]
    train(model, X, y, steps=2, updates=updates, checkpoint=path)
    arrays, facts = io.load_checkpoint(path)
    io.save_checkpoint(path, arrays | {"model": arrays["model"] | {"actions.values": np.ones(shape)}}, facts)
    with pytest.raises(ValueError, match=r"run\.safetensors cannot be resumed: .*; name another file"):
        train(model, X, y, steps=4, updates=updates, checkpoint=path)


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["callback", "keyboard"])
def test_a_stopped_run_goes_on_from_where_it_stopped(stop, tmp_path):
    X, y = data()
    model = sparse(X, y)
    path = tmp_path / "run.safetensors"
    expected = train(model, X, y, steps=20, batch_size=8)
    if stop == "callback":
        assert train(model, X, y, steps=20, batch_size=8, checkpoint=path, callbacks=[stop_at(13)]).steps
    else:
        with pytest.raises(Interrupted):
            train(model, X, y, steps=20, batch_size=8, checkpoint=path, callbacks=[interrupt_at(13)])
    seen = []
    result = train(model, X, y, steps=20, batch_size=8, checkpoint=path, callbacks=[lambda p: seen.append(p.step)])
    assert seen == list(range(14, 21))
    assert_same(result, expected)


def test_the_exact_gp_resumes_too(tmp_path):
    X, y = data()
    model = GPR.from_data(X, y)
    expected = train(model, X, y, steps=9)
    path = tmp_path / "run.safetensors"
    train(model, X, y, steps=9, checkpoint=path, callbacks=[stop_at(4)])
    assert_same(train(model, X, y, steps=9, checkpoint=path), expected)


def test_a_finished_run_is_read_and_not_trained_again(tmp_path):
    X, y = data()
    model, path, seen = sparse(X, y), tmp_path / "run.safetensors", []
    expected = train(model, X, y, steps=10, checkpoint=path)
    again = train(model, X, y, steps=10, checkpoint=path, callbacks=[lambda p: seen.append(p)])
    assert seen == []
    assert again.seconds == expected.seconds
    assert_same(again, expected)


def test_frozen_leaves_resume(tmp_path):
    X, y = data()
    model, path = sparse(X, y), tmp_path / "run.safetensors"
    updates = [Adam(frozen=("*",)), InverseUpdate()]
    train(model, X, y, steps=3, updates=updates, checkpoint=path)
    assert train(model, X, y, steps=6, updates=updates, checkpoint=path).steps == 6


class Stateless:
    """An update that has nothing to save."""

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        return model, state, {"rows": np.asarray(float(batch.X.shape[0]))}


@pytest.mark.parametrize("updates", [[Stateless()], [Adam(), Stateless()]], ids=["alone", "after-adam"])
def test_updates_without_a_state_resume(updates, tmp_path):
    X, y = data()
    model, path = sparse(X, y, Whitened), tmp_path / "run.safetensors"
    train(model, X, y, steps=3, updates=updates, checkpoint=path)
    assert train(model, X, y, steps=6, updates=updates, checkpoint=path).steps == 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [np.int64(3), 3.0], ids=["numpy", "float"])
def test_seeds_of_every_kind_resume(seed, tmp_path):
    X, y = data()
    model, path = sparse(X, y), tmp_path / "run.safetensors"
    expected = train(model, X, y, steps=6, batch_size=8, seed=seed)
    train(model, X, y, steps=6, batch_size=8, seed=seed, checkpoint=path, callbacks=[stop_at(3)])
    assert_same(train(model, X, y, steps=6, batch_size=8, seed=seed, checkpoint=path), expected)


def test_time_accumulates_over_resumptions(tmp_path):
    X, y = data()
    model, path = sparse(X, y), tmp_path / "run.safetensors"
    first = train(model, X, y, steps=10, checkpoint=path, callbacks=[stop_at(5)])
    assert train(model, X, y, steps=10, checkpoint=path).seconds > first.seconds > 0


# -- runs that do not match ------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    """The checkpoint of a run of six steps, stopped after three."""
    X, y = data()
    path = tmp_path / "run.safetensors"
    train(sparse(X, y), X, y, steps=6, batch_size=8, checkpoint=path, callbacks=[stop_at(3)])
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"run\.safetensors was written by a run with seed=0, but this one has seed=1"),
        ({"batch_size": 10}, r"safetensors was written by a run with batch_size=8, but this one has batch_size=10"),
    ],
    ids=["seed", "batch_size"],
)
def test_a_checkpoint_of_other_batches_is_refused(written, change, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        train(sparse(X, y), X, y, **({"steps": 6, "batch_size": 8, "checkpoint": written} | change))


def test_a_run_with_another_recipe_is_refused(written):
    X, y = data()
    with pytest.raises(ValueError, match="was written by a run with steps=6, but this one has steps=60"):
        train(sparse(X, y), X, y, steps=60, batch_size=8, checkpoint=written)


def test_a_checkpoint_of_other_data_is_refused(written):
    X, y = data()
    with pytest.raises(ValueError, match=r"run\.safetensors was written by a run with .*data"):
        train(sparse(X, y), X, y + 1.0, steps=6, batch_size=8, checkpoint=written)


def test_a_checkpoint_knows_what_is_known_of_rows(tmp_path):
    X, y = data()
    noise, options = X[:, 0] ** 2, {"batch_size": 8, "updates": [Adam(0.01)]}
    model = sparse(X, y, Whitened, noise=noise)
    expected = train(model, X, y, noise=noise, steps=9, **options)
    options["checkpoint"] = tmp_path / "run.safetensors"
    train(model, X, y, noise=noise, steps=4, **options)
    for other in ({}, {"noise": 2.0 * noise}, {"weights": noise}):
        with pytest.raises(ValueError, match=r"run\.safetensors was written by a run with .*data"):
            train(model, X, y, steps=9, **options, **other)
    assert_same(train(model, X, y, noise=noise, steps=9, **options), expected)


@pytest.mark.slow
def test_chosen_updates_may_go_on_for_longer(tmp_path):
    X, y = data()
    model, path, updates = sparse(X, y), tmp_path / "run.safetensors", [Adam(), InverseUpdate()]
    train(model, X, y, steps=4, updates=updates, checkpoint=path)
    expected = train(model, X, y, steps=9, updates=updates)
    assert_same(train(model, X, y, steps=9, updates=updates, checkpoint=path), expected)


def test_a_checkpoint_with_other_leaves_is_refused(written):
    X, y = data()
    with pytest.raises(ValueError, match=r"model=SVGP\(.*posterior=Relaxed.*, but this one has .*Whitened"):
        train(sparse(X, y, Whitened), X, y, steps=6, batch_size=8, checkpoint=written)


def test_a_checkpoint_with_leaves_of_other_shapes_is_refused(written):
    X, y = data()
    with pytest.raises(ValueError, match=r"run\.safetensors"):
        train(sparse(X, y, num_inducing=7), X, y, steps=6, batch_size=8, checkpoint=written)


def test_a_checkpoint_of_another_precision_is_refused(written):
    X, y = data(dtype="float32")
    with pytest.raises((TypeError, ValueError), match=r"run\.safetensors"):
        train(sparse(X, y), X, y, steps=6, batch_size=8, checkpoint=written)


@pytest.mark.parametrize("count", [1, 3])
def test_a_checkpoint_of_other_updates_is_refused(written, count):
    X, y = data()
    updates = [Adam(), InverseUpdate(), InverseUpdate()][:count]
    with pytest.raises(ValueError, match=r"run\.safetensors"):
        train(sparse(X, y), X, y, steps=6, batch_size=8, checkpoint=written, updates=updates)


def test_a_checkpoint_of_other_frozen_leaves_is_refused(written):
    X, y = data()
    updates = [Adam(frozen=("Z",)), InverseUpdate()]
    with pytest.raises(ValueError, match=r"run\.safetensors"):
        train(sparse(X, y), X, y, steps=6, batch_size=8, checkpoint=written, updates=updates)


# -- files -----------------------------------------------------------------------------------------------------------


def broken_files(path):
    whole = path.read_bytes()
    yield "truncated", whole[: len(whole) // 2]
    yield "empty", b""
    yield "text", b"not a checkpoint"


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "flipped", "npz", "directory", "pickle"])
def test_files_that_are_no_checkpoints_are_refused(written, kind):
    X, y = data()
    for name, content in list(broken_files(written)):
        if name == kind:
            written.write_bytes(content)
    if kind == "flipped":
        whole = bytearray(written.read_bytes())
        middle = len(whole) // 2
        whole[middle : middle + 64] = bytes(64)
        written.write_bytes(bytes(whole))
    if kind == "npz":
        stream = streams.BytesIO()
        np.savez(stream, a=np.ones(3))
        written.write_bytes(stream.getvalue())
    if kind == "directory":
        written.unlink()
        written.mkdir()
    if kind == "pickle":
        written.write_bytes(pickle.dumps({"a": np.ones(3)}))
    reason = ", because it is a folder; name an ordinary file"
    if kind != "directory":
        reason = " is not a checkpoint of agp .*; name another file, or remove it"
    with pytest.raises(ValueError, match=rf"run\.safetensors{reason}"):
        train(sparse(X, y), X, y, steps=6, batch_size=8, checkpoint=written)


@pytest.mark.parametrize("meta", [{}, {"seed": 0, "batch_size": 8}, {"facts": {}}], ids=["empty", "others", "half"])
def test_checkpoints_with_other_facts_are_refused(written, meta):
    X, y = data()
    io.save_checkpoint(written, io.load_checkpoint(written)[0], meta)
    with pytest.raises(ValueError, match=r"run\.safetensors is not a checkpoint of a training run"):
        train(sparse(X, y), X, y, steps=6, batch_size=8, checkpoint=written)


@pytest.mark.slow
def test_writing_leaves_one_file_and_nothing_else(tmp_path):
    X, y = data()
    train(sparse(X, y), X, y, steps=10, checkpoint=tmp_path / "run.safetensors", checkpoint_every=2)
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]
    with safe_open(tmp_path / "run.safetensors", framework="np") as file:
        Z = "process.process.inducing.Z"
        assert {f"model/{Z}", f"states/0/first/{Z}", "trace/bound"} <= set(file.keys())


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".safetensors", ".checkpoint"])
def test_the_file_has_the_name_that_was_asked_for(tmp_path, suffix):
    X, y = data()
    path = tmp_path / f"run{suffix}"
    train(sparse(X, y), X, y, steps=4, checkpoint=str(path), callbacks=[stop_at(2)])
    assert train(sparse(X, y), X, y, steps=4, checkpoint=path).steps == 4
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_does_not_exist_is_refused_before_the_first_step(tmp_path):
    X, y = data()
    seen = []
    folder = tmp_path / "absent"
    with pytest.raises((OSError, ValueError), match="absent"):
        train(
            sparse(X, y),
            X,
            y,
            steps=5,
            checkpoint=folder / "run.safetensors",
            callbacks=[lambda p: seen.append(p.step)],
        )
    assert seen == []


def test_a_saved_matern_does_not_resume_as_another_kernel(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    train(sparse(X, y), X, y, steps=4, checkpoint=path, callbacks=[stop_at(2)])
    with pytest.raises(ValueError, match=re.escape("run.safetensors")):
        train(sparse(X, y, kernel=Matern32()), X, y, steps=4, checkpoint=path)


@pytest.mark.slow
def test_a_model_saved_with_one_noise_resumes_with_the_saved_one(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    expected = train(sparse(X, y, likelihood=Gaussian(0.3)), X, y, steps=4)
    train(sparse(X, y, likelihood=Gaussian(0.3)), X, y, steps=4, checkpoint=path, callbacks=[stop_at(2)])
    assert_same(train(sparse(X, y, likelihood=Gaussian(0.3)), X, y, steps=4, checkpoint=path), expected)


@pytest.mark.slow
def test_any_exception_leaves_the_steps_so_far_in_the_checkpoint(tmp_path):
    X, y = data()
    model, path = sparse(X, y), tmp_path / "run.safetensors"
    with pytest.raises(ZeroDivisionError):
        train(model, X, y, steps=20, checkpoint=path, callbacks=[lambda progress: progress.step == 7 and 1 / 0])
    steps = []
    train(model, X, y, steps=20, checkpoint=path, callbacks=[lambda progress: steps.append(progress.step)])
    assert steps[0] == 8


def test_fewer_steps_than_were_done_are_refused(written):
    X, y = data()
    model = sparse(X, y)
    with pytest.raises(ValueError, match="written by a run with steps|holds 6 steps already"):
        train(model, X, y, steps=5, batch_size=8, checkpoint=written)


def test_other_learning_rates_are_refused(tmp_path):
    X, y = data()
    model, path = sparse(X, y), tmp_path / "run.safetensors"
    train(model, X, y, steps=3, updates=[Adam(0.01, frozen="inverse_factor")], checkpoint=path)
    with pytest.raises(ValueError, match="other updates"):
        train(model, X, y, steps=6, updates=[Adam(0.02, frozen="inverse_factor")], checkpoint=path)


def test_updates_that_log_the_same_name_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="two updates log values named bound"):
        train(sparse(X, y), X, y, steps=1, updates=[Adam(0.01, frozen="inverse_factor"), Adam(0.02)])
