"""What CuPy has: names, signatures and attributes, read from a wheel and written to `cupy_names.json` beside this file.

To be run where a new version of CuPy is to be held to, with the unpacked wheel and `cuda-pathfinder` on the path
(neither a device nor the libraries of CUDA are needed, for nothing is computed):

    pip download --no-deps -d WHEELS "cupy-cuda12x==14.*"
    python -m zipfile -e WHEELS/cupy_cuda12x-*.whl UNPACKED
    pip install --no-deps --target UNPACKED cuda-pathfinder
    PYTHONPATH=UNPACKED python tests/standins/list_cupy_names.py UNPACKED

Universal functions are written as the loops that they have ("dd->d"), other functions as their signatures. Those of
compiled functions are the first line of their docstrings, where Cython puts them.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "cupy",
    "cupy.linalg",
    "cupy.fft",
    "cupy.random",
    "cupy.cuda",
    "cupy.cuda.device",
    "cupy.cuda.runtime",
    "cupyx",
    "cupyx.scipy.special",
)
SOURCES = {"cupyx.scipy.linalg": "cupyx/scipy/linalg"}
"""Modules in Python whose import needs the libraries of CUDA."""
ONLY = {"cupy.cuda.runtime": {"getDeviceCount"}, "cupy.cuda.device": {"Device", "get_cusolver_handle"}}
"""Modules of which so much is listed."""
CLASSES = {
    "cupy.ndarray": "cupy",
    "cupy.cuda.Device": "cupy.cuda",
    "cupy.random.Generator": "cupy.random",
    "cupy.random.Philox4x3210": "cupy.random",
    "cupy.cuda.MemoryPool": "cupy.cuda",
}
BINARIES = {"cupy.cuda.cusolver": ("cupy_backends/cuda/libs/cusolver.*.so", r"[sd]potrf(?:Batched|_bufferSize)?")}
"""Compiled modules whose import needs those libraries; the docstrings of their functions stand in the files as text."""
CONSTANTS = {"cupy.cuda.cublas": {"CUBLAS_FILL_MODE_LOWER": 0, "CUBLAS_FILL_MODE_UPPER": 1}}
"""Written by hand: an enumeration of cuBLAS, whose numbers stand in no file of the wheel as text; `cupy.linalg` uses
both names."""


def plain(parameters: str) -> str:
    """A signature as Python has it: Cython's without the types of C."""
    words = [re.sub(r"^\s*(?:[A-Za-z_]\w* )+(?=\w)", "", one) for one in parameters.split(",")]
    return "(" + ", ".join(word.strip() for word in words if word.strip()) + ")"


def documented(f: Any) -> str:
    """The signature in the first line of a docstring, or that of anything where there is none."""
    line = (f.__doc__ or "").partition("\n")[0]
    found = re.match(r"[\w.]+\((.*?)\)(?: ->.*)?$", line)
    return plain(found[1]) if found else "(*args, **kwargs)"


def described(value: Any) -> str | None:
    """One name: loops of a universal function, a signature, what kind of thing it is, or None for what is not told."""
    if type(value).__name__ == "ufunc":
        return " ".join(value.types)
    if inspect.ismodule(value):
        return "module"
    if isinstance(value, type):
        return "type"
    if not callable(value):
        return "value"
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):
        return documented(value)
    # defaults that are no literals, such as types, are given by the library itself
    keep = [
        p.replace(annotation=p.empty, default=p.default if isinstance(p.default, (bool, int, float, str)) else None)
        if p.default is not p.empty
        else p.replace(annotation=p.empty)
        for p in found.parameters.values()
    ]
    return str(found.replace(parameters=keep, return_annotation=found.empty))


def attribute(value: Any) -> str:
    """One attribute of a class: the signature of a method without self, or "attribute"."""
    if not callable(value):
        return "attribute"
    return re.sub(r"^\(self(?:, )?", "(", described(value) or "")


def public(folder: Path) -> dict[str, str]:
    """The functions that a package imports from its own modules, as these define them."""
    imported = ast.parse((folder / "__init__.py").read_text())
    names = {alias.name for node in imported.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    defined = (node for path in folder.glob("*.py") for node in ast.parse(path.read_text()).body)
    functions = (node for node in defined if isinstance(node, ast.FunctionDef) and node.name in names)
    return {f.name: f"({ast.unparse(f.args)})" for f in sorted(functions, key=lambda f: f.name)}


def listed(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in MODULES:
        owner, _, name = module.rpartition(".")
        there = getattr(importlib.import_module(owner), name) if owner else importlib.import_module(module)
        names = {name: described(value) for name, value in vars(there).items() if not name.startswith("_")}
        names |= {path.rpartition(".")[2]: "type" for path, module_of in CLASSES.items() if module_of == module}
        kept = ONLY.get(module, names)
        found[module] = {name: names[name] for name in sorted(kept) if names[name] != "module"}
    for path, module in CLASSES.items():
        kind = getattr(importlib.import_module(module), path.rpartition(".")[2])
        own = {name for name in dir(kind) if not name.startswith("_") or name.startswith("__")}
        inherited = set(dir(object)) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__init__"}
        names = {name: getattr(kind, name) for name in sorted(own - inherited)}
        found[path] = {name: "special" if name.startswith("__") else attribute(value) for name, value in names.items()}
    for module, folder in SOURCES.items():
        found[module] = public(root / folder)
    for module, (pattern, names) in BINARIES.items():
        (binary,) = root.glob(pattern)
        text = binary.read_bytes().decode("latin-1")
        lines = re.findall(rf"\b({names})\((.*?)\)", text)
        found[module] = {name: plain(parameters) for name, parameters in sorted(set(lines))}
    return found | CONSTANTS


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir() or importlib.util.find_spec("cupy") is None:
        sys.exit("give the folder of the unpacked wheel, and have it on the path: see the top of this file.")
    import cupy

    document = {"version": cupy.__version__, **listed(Path(sys.argv[1]))}
    Path(__file__).with_name("cupy_names.json").write_text(json.dumps(document, indent=1) + "\n")
