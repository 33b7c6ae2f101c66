"""With the core dependencies alone: what works, and what everything else says that it needs, in one sentence."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

CORE = {"numpy", "scipy", "array-api-compat", "safetensors", "threadpoolctl", "array-gp"}
OPTIONAL = {name for name, owners in packages_distributions().items() if not CORE & {owner.lower() for owner in owners}}
"""The packages that are installed here and belong to no core dependency."""

BARE = f"""
import sys, warnings
warnings.simplefilter("ignore")
OPTIONAL = {OPTIONAL | {"torch", "jax", "cupy", "matplotlib", "sklearn", "narwhals", "pandas", "rich", "tqdm"}!r}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import numpy as np
import agp
X = np.linspace(0.0, 3.0, 24)[:, None]
y = np.sin(2.0 * X) + 0.1 * np.cos(40.0 * X)
"""


def bare(program):
    """What a program prints where only the core dependencies are installed."""
    run = [sys.executable, "-c", BARE + program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "300"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_models_are_trained_saved_and_loaded_with_the_core_alone(tmp_path):
    bare(f"""
for model in (agp.GPR.from_data(X, y), agp.SVGP.from_data(X, y, num_inducing=6)):
    result = agp.train(model, X, y, steps=5)
    assert result.trace["bound"][-1] > result.trace["bound"][0]
    agp.save(result.model, {str(tmp_path / "model.safetensors")!r})
    found = agp.load({str(tmp_path / "model.safetensors")!r})
    assert (found.predict(X).mean == result.model.predict(X).mean).all()
assert agp.fit(agp.GPR.from_data(X, y), X, y, max_steps=5).steps <= 5
assert agp.inspection.partial_dependence(found, X).mean.shape == (24, 1)
""")


ENTRIES = {
    "agp.plot": ("ImportError", "agp.plot needs matplotlib", "plot"),
    "agp.estimators": ("ImportError", "agp.estimators needs narwhals", "sklearn"),
    "agp.GPRegressor": ("ImportError", "agp.estimators needs narwhals", "sklearn"),
    "agp.interop.autogluon": ("ImportError", "agp.interop.autogluon needs autogluon.tabular", "autogluon"),
    "agp.interop.botorch": ("ImportError", "agp.interop.botorch needs botorch", "botorch"),
    "agp.interop.torch": ("ImportError", "agp.interop.torch needs torch", "torch"),
    "agp.to_backend(X, 'torch')": ("BackendError", "backend 'torch' needs the package torch", "torch"),
    "agp.to_backend(X, 'jax')": ("BackendError", "backend 'jax' needs the package jax", "jax"),
    "agp.get_backend('cupy')": ("BackendError", "backend 'cupy' needs the package cupy", "cupy"),
    "agp.inspection.as_table('text')": ("ImportError", "tables other than arrays need narwhals", "sklearn"),
}


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_missing_is_said_in_one_sentence_with_its_extra(entry):
    kind, beginning, extra = ENTRIES[entry]
    said = bare(f"""
try:
    {entry}
except Exception as error:
    print(type(error).__name__, error)
""")
    assert said.startswith(kind)
    assert beginning in said
    assert said.endswith(f'which is not installed: pip install "array-gp[{extra}]".\n')
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("command", [["backends"], ["compare"]], ids=" ".join)
def test_commands_say_which_extra_they_need(command):
    said = bare(f"""
import contextlib, io
from agp.cli import main
said = io.StringIO()
with contextlib.redirect_stderr(said):
    status = main({command!r})
assert status == 2, status
print(said.getvalue(), end="")
""")
    assert said.startswith("agp: ")
    assert 'which is not installed: pip install "array-gp[' in said
    assert said.count("\n") == 1
