"""Check a release: build it, inspect its files, install it outside the checkout, and use it.

``python .ci/check_wheel.py FOLDER`` needs the package `build`. The folder is emptied first.
"""

import csv
import os
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"agp", "agp_backends"}
BESIDE = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO", ".gitignore"}

SMOKE = """
from importlib.metadata import entry_points, version
from pathlib import Path
import sys
import numpy as np
import agp

assert version("array-gp") == agp.__version__, (version("array-gp"), agp.__version__)
assert Path(sys.prefix) in Path(agp.__file__).parents, agp.__file__
plugins = {point.name: point.module for point in entry_points(group="agp.backends")}
assert {"numpy", "torch", "jax", "cupy", "dask", "array_api_strict"} <= set(plugins), plugins
rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (120, 1))
y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
result = agp.fit(agp.SVGP.from_data(X, y, num_inducing=12), X, y)
error = np.sqrt(np.mean((result.model.predict(X).mean - np.sin(2.0 * X)) ** 2))
assert error < 0.1, error
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output. If it fails, print the output and exit."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(x) for x in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(str(x) for x in command[:4])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_content(wheel: Path, sdist: Path) -> None:
    """Check that wheel and sdist contain the package, its plug-ins and its licence, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops - PACKAGES == {f"{wheel.name.rsplit('-', 3)[0]}.dist-info"}, tops
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names), "the wheel has no licence"
    assert {"agp/py.typed", "agp/__init__.pyi"} <= {*names}, "the wheel does not declare its types"
    kinds = {Path(name).suffix for name in names if name.split("/")[0] in PACKAGES}
    assert kinds <= {".py", ".pyi", ".typed", ""}, kinds
    with tarfile.open(sdist) as archive:
        parts = [Path(name).parts[1:] for name in archive.getnames()]
    tops = {part[0] for part in parts if part}
    assert {"agp", "backends", *BESIDE - {".gitignore"}} <= tops <= {"agp", "backends", *BESIDE}, tops


def check_use(python: Path, folder: Path) -> None:
    """Check imports, plug-ins, a fit, and the commands on a table."""
    run(python, "-c", SMOKE, cwd=folder)
    agp = python.parent / "agp"
    assert "numpy" in run(agp, "backends", cwd=folder)
    draw = random.Random(0)
    rows = [(x, 2.0 * x + draw.gauss(0.0, 0.1)) for x in (draw.uniform(0.0, 5.0) for _ in range(80))]
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("x", "y"), *rows])
    run(agp, "fit", "table.csv", "--target", "y", "--out", "model.safetensors", cwd=folder)
    run(agp, "predict", "model.safetensors", "table.csv", "--out", "predictions.csv", cwd=folder)
    with (folder / "predictions.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)


def main(folder: Path) -> None:
    """Build, inspect, install and use the release in this folder."""
    shutil.rmtree(folder, ignore_errors=True)
    used = folder / "used"
    used.mkdir(parents=True)
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_content(wheel, sdist)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--disable-pip-version-check", f"{wheel}[cli]", cwd=folder)
    check_use(python, used)
    sys.stdout.write(f"{wheel.name} and {sdist.name} have the right files, and the installed wheel works\n")


main(Path(sys.argv[1]).resolve())
