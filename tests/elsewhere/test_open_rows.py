"""Rows of files that are opened rather than read, by the estimators and the commands as well."""

import numpy as np
import pytest

import agp
from agp.cli import main
from agp.tables import open_rows

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")
pd = pytest.importorskip("pandas")

NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 3))
    return np.column_stack([X, np.sin(X.sum(axis=1)) + 0.1 * rng.standard_normal(240)])


@pytest.fixture
def parts(rows, tmp_path):
    for i in range(3):
        part = pd.DataFrame(rows[80 * i : 80 * (i + 1)], columns=[*NAMES, "y"])
        part.to_parquet(tmp_path / f"part-{i}.parquet")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["part-*.parquet", ""])
def test_parquet_is_one_chunk_a_file(name, parts, rows):
    found = open_rows(parts / name, target="y")
    assert found.columns == NAMES
    assert found.X.chunks == ((80, 80, 80), (3,))
    np.testing.assert_array_equal(found.X.compute(), rows[:, :3])
    np.testing.assert_array_equal(found.y.compute(), rows[:, 3])
    some = open_rows(parts / "part-*.parquet", target="y", without=["b"], chunk_rows=50)
    assert some.columns == ["a", "c"]
    assert max(some.X.chunks[0]) == 50


@pytest.mark.slow
def test_npy_is_mapped_into_memory(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    found = open_rows(tmp_path / "rows.npy", target=-1)
    assert isinstance(found.X, np.memmap)
    model = agp.SVGP.from_data(found.X, found.y, num_inducing=8)
    same = agp.SVGP.from_data(rows[:, :3], rows[:, 3], num_inducing=8)
    one, two = (
        agp.train(m, *xy, steps=5, batch_size=20) for m, xy in [(model, found[:2]), (same, (rows[:, :3], rows[:, 3]))]
    )
    assert one.trace["bound"] == two.trace["bound"]


@pytest.mark.slow
def test_hdf5_and_zarr_keep_their_chunks(rows, tmp_path):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("table", data=rows, chunks=(60, 4))
        file.create_dataset("other", data=rows[:10])
    zarr.save_array(str(tmp_path / "rows.zarr"), rows)
    for found in (
        open_rows(tmp_path / "rows.h5", target=-1, dataset="table"),
        open_rows(tmp_path / "rows.zarr", target=-1, chunk_rows=60),
    ):
        assert found.X.chunks[0] == (60, 60, 60, 60)
        np.testing.assert_array_equal(found.X.compute(), rows[:, :3])
        np.testing.assert_array_equal(found.y.compute(), rows[:, 3])
    with pytest.raises(ValueError, match="no array was chosen; set dataset to one of other, table"):
        open_rows(tmp_path / "rows.h5")


@pytest.mark.slow
def test_what_cannot_be_opened_is_named(parts, rows):
    for name, how, message in [
        ("none-*.parquet", {}, "the file does not exist"),
        ("part-*.parquet", {"target": "z"}, "no column 'z'; its columns are a, b, c, y"),
        ("part-*.parquet", {"target": "y", "without": NAMES}, "has no column left for inputs"),
        ("table.txt", {}, "has an unknown file type; use .npy, .parquet, .zarr or .h5"),
        ("rows.npy", {"target": 1}, "must be the first or the last column"),
        ("rows.npy", {"target": "y"}, "target is 'y', but must be a column number of .*rows.npy, from -4 to 3"),
    ]:
        (parts / "table.txt").write_text("1")
        np.save(parts / "rows.npy", rows)
        with pytest.raises(ValueError, match=message):
            open_rows(parts / name, **how)
    pd.DataFrame({"a": ["x"], "y": [1.0]}).to_parquet(parts / "text.parquet")
    with pytest.raises(ValueError, match="column 'a' holds .*, not numbers"):
        open_rows(parts / "text.parquet", target="y")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("settings", [{}, {"method": "sgpr"}, {"backend": "torch"}])
def test_estimators_take_lazy_rows(settings, rows):
    estimators = pytest.importorskip("agp.estimators")
    X, y = rows[:, :3], rows[:, 3]
    dX, dy = da.from_array(X, chunks=(60, 3)), da.from_array(y, chunks=60)
    settings |= {"num_inducing": 15, "max_steps": 220, "random_state": 0}
    estimator = estimators.GPRegressor(**settings).fit(dX, dy)
    mean = estimator.predict(dX)
    assert isinstance(mean, da.Array)
    assert np.mean((mean.compute() - y) ** 2) < 0.3 * np.var(y)
    assert estimator.score(dX, dy) == pytest.approx(estimator.score(X, y))
    labels = dy > 0.0
    judge = estimators.GPClassifier(num_inducing=10, max_steps=100, random_state=0).fit(dX, labels)
    assert np.mean(np.asarray(judge.predict(dX)) == labels.compute()) > 0.7


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_a_command_trains_on_many_files_and_predicts_one(parts, capsys):
    model, table = str(parts / "m.safetensors"), str(parts / "part-*.parquet")
    settings = ["--max-steps", "20", "--num-inducing", "10"]
    assert main(["fit", table, "--target", "y", "--out", model, *settings]) == 0
    assert "240 rows in 3 chunks, 3 input columns" in capsys.readouterr().out
    assert main(["predict", model, str(parts / "part-0.parquet")]) == 0
    alone = capsys.readouterr().out.splitlines()
    assert len(alone) == 81
    assert main(["predict", model, table, "--out", str(parts / "found")]) == 0
    assert capsys.readouterr().out.count("written") == 3
    each = [pd.read_parquet(parts / "found" / f"part-{i}.parquet") for i in range(3)]
    assert [len(one) for one in each] == [80, 80, 80]
    assert f"{each[0]['mean'][0]:.6g}" == f"{float(alone[1].split(',')[0]):.6g}"


def test_the_predictions_of_several_tables_need_a_folder_of_their_own(parts, capsys):
    model, table = str(parts / "m.safetensors"), str(parts / "part-*.parquet")
    for out, message in [
        ([], "are written to a folder; specify it with --out"),
        (["--out", str(parts / "all.csv")], "are written to a folder; specify it with --out"),
        (["--out", str(parts)], "the folder of the tables; name another folder"),
    ]:
        assert main(["predict", model, table, *out]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", model, str(parts / "none-*.csv"), "--out", str(parts / "found")]) == 2
    assert "no .csv, .parquet or .csv.gz file matches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--test-share", "0.1"], "--test-share cannot be used with --scheduler or with a table split across several"),
        (["--task", "classification"], "--task classification cannot be used with --scheduler"),
        (["--missing", "impute"], "--missing impute cannot be used with --scheduler"),
        (["--target", "a"], "several targets cannot be used with --scheduler"),
    ],
)
def test_a_command_names_what_rows_on_disk_do_not_allow(options, message, parts, capsys):
    model, table = str(parts / "m.safetensors"), str(parts / "part-*.parquet")
    assert main(["fit", table, "--target", "y", "--out", model, *options]) != 0
    assert message in capsys.readouterr().err
    assert main(["fit", str(parts / "t.csv"), "--target", "y", "--out", model, "--scheduler", "127.0.0.1:1"]) != 0
    assert "--scheduler requires .parquet files" in capsys.readouterr().err
