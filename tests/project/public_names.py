"""Print the public names of this version as JSON, for `public_names.json`; see docs/releasing.md."""

import dataclasses
import importlib
import inspect
import json
import sys

import agp


def parameters(x) -> list[str]:
    """The names of the parameters of a function or constructor."""
    try:
        return [name for name in inspect.signature(x).parameters if not name.startswith("_")]
    except (TypeError, ValueError):
        return []


def attributes(cls) -> list[str]:
    """The public attributes of a class: fields, properties and methods."""
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    own = {name for base in cls.__mro__ if base.__module__.startswith("agp.") for name in vars(base)}
    return sorted(name for name in fields | own if not name.startswith("_"))


def public_names() -> dict[str, dict[str, list[str]]]:
    """What each public module exports: full names, with parameters, and with attributes of classes."""
    found: dict[str, dict[str, list[str]]] = {}
    for module in ("agp", *(f"agp.{package}" for package in agp._PACKAGES.split())):
        for name in sorted(importlib.import_module(module).__all__):
            x = getattr(importlib.import_module(module), name)
            found[f"{module}.{name}"] = details = {}
            if module != "agp" and callable(x):
                details["parameters"] = parameters(x)
            if module != "agp" and isinstance(x, type):
                details["attributes"] = attributes(x)
    return found


def main() -> None:
    """Write one line for each name."""
    lines = [f"    {json.dumps(name)}: {json.dumps(details)}" for name, details in public_names().items()]
    head = f'{{\n  "version": {json.dumps(agp.__version__)},\n  "names": {{\n'
    sys.stdout.write(head + ",\n".join(lines) + "\n  }\n}\n")


if __name__ == "__main__":
    main()
