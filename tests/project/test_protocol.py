"""The page on the protocol: every abstract class that is public, all that it needs, and nothing that does not exist."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import agp

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "protocol.md"
TABLE = re.compile(r"^\| `(agp(?:\.\w+)+)` \|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"`(\w+)(\(.*?\))?`(?:, |$)")
EXTRAS = {"estimators", "plot"}
"""Rooms that need a library of an extra, and have no abstract classes."""


def tables():
    """The rows of each table: the entries of the first cell, and whether a class may leave them out."""
    found = {}
    for cls, body in TABLE.findall(PAGE.read_text(encoding="utf-8")):
        rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in body.splitlines()]
        assert {last for *_, last in rows} <= {"", "optional"}, cls
        found[cls] = [(name, args, last) for first, *_, last in rows for name, args in ENTRY.findall(first)]
    return found


TABLES = tables()
PACKAGES = [importlib.import_module(f"agp.{package}") for package in agp._PACKAGES.split() if package not in EXTRAS]


def named(dotted):
    package, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(package), name)


def needed(cls):
    """What an abstract class or a protocol leaves to be written."""
    if getattr(cls, "_is_protocol", False):
        return {name for name, x in vars(cls).items() if inspect.isfunction(x) and name != "__init__"} - PROTOCOLS
    return set(cls.__abstractmethods__)


PROTOCOLS = {"_no_init_or_replace_init", "__subclasshook__"}
"""What `typing.Protocol` puts into a class."""


def is_abstract(x):
    return isinstance(x, type) and (inspect.isabstract(x) or getattr(x, "_is_protocol", False))


def test_every_public_abstract_class_has_a_table_or_needs_nothing_of_its_own():
    abstract = {
        f"{package.__name__}.{name}"
        for package in PACKAGES
        for name in package.__all__
        if is_abstract(vars(package)[name])
    }
    assert set(TABLES) <= abstract
    assert {"agp.kernels.Kernel", "agp.updates.Update", "agp.models.Model"} <= set(TABLES)
    classes = {named(dotted): {name for name, _, last in rows if not last} for dotted, rows in TABLES.items()}
    text = PAGE.read_text(encoding="utf-8")
    for dotted in abstract:
        listed = set().union(*(classes.get(base, set()) for base in named(dotted).__mro__))
        assert needed(named(dotted)) <= listed, (dotted, needed(named(dotted)) - listed)
        assert f"`{dotted}`" in text or f"`{dotted.rpartition('.')[2]}`" in text, dotted


@pytest.mark.parametrize("dotted", TABLES)
def test_what_a_table_names_exists_takes_these_arguments_and_is_needed_or_not(dotted):
    cls = named(dotted)
    for name, args, last in TABLES[dotted]:
        assert (name not in needed(cls)) == (last == "optional"), name
        found = inspect.getattr_static(cls, name)
        if isinstance(found, (property, bool, int)):
            assert not args, name
            continue
        taken = [one.lstrip("_") for one in inspect.signature(getattr(found, "__func__", found)).parameters]
        assert args.startswith("("), name
        assert re.findall(r"(\w+)(?:=[^,]*)?(?:, |$)", args[1:-1]) == taken[1:], name


def test_what_the_page_names_is_public():
    for package, name in re.findall(r"`@?agp\.(\w+)\.(\w+)", PAGE.read_text(encoding="utf-8")):
        assert name in importlib.import_module(f"agp.{package}").__all__, f"agp.{package}.{name}"
