"""The documentation runs: every Python block of the README and the guide, and the example scripts."""

import ast
import contextlib
import importlib
import inspect
import io
import pkgutil
import re
import runpy
import sys
import types
from pathlib import Path

import array_api_strict
import numpy as np
import pytest

import agp
import agp.backend
from agp import tree
from agp.cli import main
from agp.methods import METHODS

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDE = [
    page
    for folder in (
        DOCS,
        *(DOCS / name for name in ("start", "guide", "migration", "methods", "extending", "tutorials")),
    )
    for page in sorted(folder.glob("*.md"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDE]
PRINTED = {"start", "guide", "shell.md"}
"""Folders, and a page, that `test_printed.py` runs, with all that they print."""
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
SHORT = {
    "deep_models.py": ["--out", "runs", "--steps", "4", "--every", "2", "--num-inducing", "10"],
    "inducing_auto.py": ["--out", "growth.json", "--sizes", "10"],
    "inducing_growth.py": ["."],
    "nuts.py": ["--warmup", "50", "--draws", "50"],
    "mnist.py": ["--out", "runs", "--steps", "2", "--every", "2", "--num-inducing", "10"],
    "units_table.py": ["--out", "units.json", "--steps", "2", "--methods", "wsvgp", "gpr"],
    "lazy_rows.py": ["--rows", "4000", "--chunk", "1000", "--num-inducing", "8", "--workers", "1"],
    "rows_on_disk.py": ["--file", "rows.npy", "--rows", "3000", "--num-inducing", "8", "--steps", "5", "--turns", "1"],
    "deep_kernels.py": ["--rows", "200", "--num-inducing", "8", "--batch-size", "50", "--steps", "3", "--seeds", "1"],
    "deep_kernels_jax.py": ["--steps", "8"],
    "many_rows.py": ["--rows", "300", "--new", "50"],
    "cagp_scaling.py": ["--shrink", "64", "--picture", "growth.png"],
    "deep_step.py": ["step.png", "--steps", "5"],
    "bayesian_optimisation.py": ["--results", "regret.jsonl", "--models", "agp", "--seeds", "1", "--evaluations", "1"],
    "convolutional.py": ["--steps", "2", "--picture", "digits.png"],
    "dual_against_natural.py": ["--outer", "2", "--picture", "curves.png"],
    "loss_traces.py": ["--steps", "20", "--picture", "traces.png"],
    "forecasting.py": ["--origins", "1", "--months", "12"],
    "estimator_likelihoods.py": ["--seeds", "1", "--tolerance", "0.1"],
    "map.py": ["--rows", "1000", "--models", "sphere", "boosting"],
    "method_pictures.py": ["."],
    "pictures.py": ["."],
    "several_outputs.py": ["--seeds", "1", "--steps", "2", "--rows", "60", "--num-inducing", "8", "--missing", "0.1"],
}
"""Arguments with which an example is done in seconds."""
NEEDS = {
    "nuts.py": ("jax", "blackjax"),
    "deep_kernels.py": ("gpytorch",),
    "deep_kernels_jax.py": ("jax", "equinox", "optax"),
    "bayesian_optimisation.py": ("botorch",),
    "bayesian-optimisation.md": ("botorch",),
    "forecasting.md": ("matplotlib",),
    "map.md": ("matplotlib",),
    "forecasting.py": ("statsmodels",),
}
"""Libraries of examples and pages that the extras for tests do not bring."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLUGIN = "import arrlib\n"


def code_of(page):
    """The Python blocks of a page as one program whose line numbers are those of the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for match in BLOCK.finditer(text):
        if PLUGIN in match[1]:
            continue
        first = text.count("\n", 0, match.start(1))
        block = match[1].splitlines()
        lines[first : first + len(block)] = block
    return "\n".join(lines) + "\n"


def write_table(path, target="y", *, hole=False):
    """The table of a reader: numbers, text, a missing cell if asked for, and a target."""
    rng = np.random.default_rng(0)
    x, kind = rng.uniform(0.0, 10.0, 100), rng.choice(["round", "square"], 100)
    y = np.sin(x) + 3.0 * (kind == "round") + 0.2 * rng.standard_normal(100)
    rows = [f"{a:.4f},{b},{c:.4f}" for a, b, c in zip(x, kind, y, strict=True)]
    if hole:
        rows[5] = rows[5][rows[5].index(",") :]
    path.write_text("\n".join([f"x,kind,{target}", *rows]) + "\n", encoding="utf-8")


def run(page, monkeypatch, folder):
    """Run the blocks of a page in order, in a module of its own and an empty folder; return what was printed."""
    module = types.ModuleType("documented")
    monkeypatch.setitem(sys.modules, "documented", module)
    monkeypatch.setattr("agp.backend._discovery._REGISTERED", {})  # what a page registers stays on the page
    monkeypatch.setattr("agp.backend._discovery._BY_TYPE", {})
    monkeypatch.syspath_prepend(page.parent)  # data of the tutorials
    monkeypatch.chdir(folder)
    write_table(folder / "table.csv", hole=True)
    printed, before = io.StringIO(), dict(METHODS)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code_of(page), str(page), "exec"), module.__dict__)
    finally:
        METHODS.clear()
        METHODS.update(before)
    return printed.getvalue()


def skip_without_its_libraries(file):
    """Skip where a library is missing that an example or a page needs."""
    for library in NEEDS.get(file.name, ()):
        pytest.importorskip(library, reason=f"{library} is not installed: not executed")


# where L-BFGS ends early, as it may at the limit of rounding, BoTorch says so and tries again
@pytest.mark.sample(8)
@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if code_of(p).strip() and not PRINTED & {p.name, p.parent.name}],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_the_python_blocks_of_a_page_run(page, monkeypatch, tmp_path):
    skip_without_its_libraries(page)
    run(page, monkeypatch, tmp_path)


@pytest.mark.parametrize("page", ["README.md", "docs/shell.md"])
def test_the_commands_for_tables_of_a_page_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "table.csv", hole=True)
    write_table(tmp_path / "airfoil.csv", "sound")
    write_table(tmp_path / "new.csv")
    text = (ROOT / page).read_text(encoding="utf-8")
    if Path(page).name in PRINTED:  # the other blocks run there
        text = re.sub(r"^```sh\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^agp ((?:fit|predict|describe) .*)$", text, re.MULTILINE)
    assert {"fit", "predict"} <= {command.split()[0] for command in commands}
    for command in commands:
        arguments = command.split()
        written = arguments[arguments.index("--out") + 1] if "--out" in arguments else None
        assert main([*arguments, *(["--max-steps", "5"] if arguments[0] == "fit" else [])]) == 0, command
        assert written is None or (tmp_path / written).exists(), command


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_a_method_has_a_picture_and_names_its_files(page):
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]+\]\((.+?)\)", text)
    files = re.findall(r"`(agp/[a-z_/]+\.py)`", text)
    assert pictures
    assert files
    assert [name for name in pictures if not (page.parent / name).exists()] == []
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.long
def test_the_quickstart_lists_the_leaves_that_it_says(monkeypatch, tmp_path):
    page = DOCS / "quickstart.md"
    listing = re.search(r"^```text\n(process\..*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert listing is not None
    assert listing[1] in run(page, monkeypatch, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_an_example_runs(example, monkeypatch, tmp_path):
    skip_without_its_libraries(example)
    monkeypatch.setattr(sys, "argv", [str(example), *SHORT.get(example.name, [])])
    monkeypatch.syspath_prepend(str(example.parent))
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(example), run_name="__main__")


@pytest.mark.long
def test_the_backends_agree_in_twenty_lines(capsys):
    example = DOCS / "examples" / "swap_backend.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 20
    runpy.run_path(str(example), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in rows] == ["numpy", "torch"]
    first, second = (float(bound) for _, bound in rows)
    assert second == pytest.approx(first, rel=1e-9, abs=0.0)


def test_the_documented_plugin_gives_the_bound_of_numpy(monkeypatch):
    library = types.ModuleType("arrlib")
    library.__dict__.update(vars(array_api_strict), Array=type(array_api_strict.zeros(())))
    monkeypatch.setitem(sys.modules, "arrlib", library)
    text = (DOCS / "extending" / "backend.md").read_text(encoding="utf-8")
    (block,) = (b for b in BLOCK.findall(text) if PLUGIN in b)
    namespace = {}
    exec(compile(block, "backend.md", "exec"), namespace)
    plugin = namespace["ArrlibBackend"]()
    monkeypatch.setattr(
        "agp.backend._discovery._BY_TYPE", {np.ndarray: agp.get_backend("numpy"), library.Array: plugin}
    )

    rng = np.random.default_rng(0)
    X, y = rng.uniform(-2.0, 2.0, (40, 2)), (rng.uniform(size=(40, 1)) > 0.5).astype(np.float64)
    for posterior in (agp.posteriors.Whitened, agp.posteriors.Relaxed):
        model = agp.SVGP.from_data(X, y, posterior=posterior, likelihood=agp.Bernoulli(), num_inducing=8)
        moved = agp.tree.with_leaves(model, {k: plugin.from_numpy(v) for k, v in agp.tree.leaves(model).items()})
        bound = moved.bound(plugin.from_numpy(X), plugin.from_numpy(y))[0]
        assert float(bound) == pytest.approx(float(model.bound(X, y)[0]), rel=1e-9)
    assert not np.isfinite(plugin.to_numpy(plugin.cholesky(plugin.from_numpy(-np.eye(2))))[0, 0])


def test_every_page_is_in_a_table_of_contents():
    indices = [DOCS / "index.md", *DOCS.glob("*/index.md")]
    folders = [page.parent.name for page in indices[1:]]
    toctrees = "\n".join(p.read_text(encoding="utf-8") for p in indices)
    for page in [*GUIDE, *(DOCS / "reference").glob("*.md")]:
        name = str(page.relative_to(DOCS).with_suffix(""))
        listed = {name, *(name.removeprefix(f"{folder}/") for folder in folders)} & set(toctrees.splitlines())
        assert listed or name == "index", f"{page} is in no table of contents"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page):
    for name in re.findall(r"`((?:agp|tests|backends|docs)/[\w/]*\w+\.py)`", page.read_text(encoding="utf-8")):
        assert name.endswith("/_name.py") or (ROOT / name).exists(), f"{page.name} names {name}"


# -- what is public ---------------------------------------------------------------------------------------------------

INTERNAL = {"checks", "chunking", "cli", "neighbours", "starts"}
"""Rooms that nobody outside of this repository needs: without a page in the reference, and without `__all__`."""
REFERENCE = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}
EXPORTED = re.findall(r"^\.\. (?:exports|automodule):: agp\.(\w+)$", "\n".join(REFERENCE.values()), re.M)
"""The subpackages whose public names the pages of the reference list when they are built."""


BY_HAND = {
    module: re.findall(r"^   (\w+)$", block, re.M)
    for page in REFERENCE.values()
    for module, block in re.findall(r"^\.\. currentmodule:: agp\.([\w.]+)\n(.*?)```$", page, re.M | re.S)
}
"""The names that the pages list themselves, of modules that need a library of their own."""


def test_every_package_is_in_the_reference_or_internal():
    packages = {module.name for module in pkgutil.iter_modules(agp.__path__)} - {"__main__"}
    assert packages == {*EXPORTED, *INTERNAL}
    assert sorted(EXPORTED) == sorted(agp._PACKAGES.split())
    assert [package for package in INTERNAL if "__all__" in vars(importlib.import_module(f"agp.{package}"))] == []


def test_the_reference_is_expanded_by_names_and_short_names():
    expanded = runpy.run_path(str(DOCS / "_ext" / "exports.py"))["expanded"]
    page = expanded("# Kernels\n\n.. exports:: agp.kernels\n")
    assert re.search(r"^\.\. automodule:: agp\.kernels$", page, re.M)
    assert re.findall(r"^   (\w+)$", page, re.M) == agp.kernels.__all__
    assert "``matern32``" in page


def test_the_guide_says_which_packages_are_internal():
    sentence = re.search(r"\nThe subpackages (`\w+`[^.]*) are internal", (DOCS / "architecture.md").read_text("utf-8"))
    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == INTERNAL


def test_the_reference_lists_what_the_package_exports():
    listed = re.findall(r"^   ~agp\.(\w+)\.(\w+)$", REFERENCE["index"], re.M)
    assert len(set(listed)) == len(listed)
    assert {name: package for package, name in listed} == agp._PACKAGE_OF


def names_of_packages(code):
    """The names that a program imports from agp: pairs of a subpackage and a name."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agp"):
            package = (node.module or "").partition(".")[2]
            yield from ((package or alias.name, alias.name if package else None) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("agp."):
            package = ast.unparse(node.value).split(".")[1]
            if ast.unparse(node.value) == f"agp.{package}" and package in {*EXPORTED, *INTERNAL}:
                yield package, node.attr


OF_AUTHORS = {"inducing_auto.py", "rows_on_disk.py", "units_table.py"}
"""Scripts that measure what pages tell, and look into the library for that."""
PROGRAMS = {
    **{str(page.relative_to(ROOT)): code_of(page) for page in PAGES},
    **{
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in [*EXAMPLES, *sorted((DOCS / "gallery").glob("*.py"))]
        if path.name not in OF_AUTHORS
    },
}


@pytest.mark.parametrize("program", [name for name, code in PROGRAMS.items() if "agp" in code])
def test_what_users_read_uses_public_names_alone(program):
    for module, name in set(names_of_packages(PROGRAMS[program])):
        assert module in {*EXPORTED, *BY_HAND} or (name is None and module in agp._PACKAGE_OF), module
        public = BY_HAND.get(module) or (name and importlib.import_module(f"agp.{module}").__all__)
        assert name is None or name in public, f"agp.{module}.{name}"


PACKAGES_OF_METHODS = ("models", "posteriors", "processes", "inducing")
PARTS_OF_THE_PROTOCOL = {"SparsePrior", "Variational", "WhiteFactor"}
PARTS_OF_THE_PROTOCOL |= {"ComputationAware", "DatumSites", "Exact", "Iterative", "NearestNeighbours"}
"""Concrete classes of these packages that are no methods."""


def test_lists_are_those_of_the_one_table():
    namespace = runpy.run_path(str(DOCS / "_ext" / "features.py"))
    for page in namespace["PLACES"]:
        assert page.read_text(encoding="utf-8") == namespace["written"](page), "run python docs/_ext/features.py"


def test_the_table_of_what_exists_lists_every_method():
    public = [
        (getattr(agp, package), name) for package in PACKAGES_OF_METHODS for name in getattr(agp, package).__all__
    ]
    classes = [(name, vars(package)[name]) for package, name in public if isinstance(vars(package)[name], type)]
    methods = [name for name, cls in classes if tree.is_model_class(cls) and not inspect.isabstract(cls)]
    methods = [name for name in methods if name not in PARTS_OF_THE_PROTOCOL]
    assert {"SVGP", "Relaxed", "Deep", "Patches"} <= set(methods)
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    assert not [name for name in methods if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_tables_are_whole(page):
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if line.startswith("| ") and not line.rstrip().endswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
