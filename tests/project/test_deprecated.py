"""Former names: callers, subclasses and files of the last release."""

from abc import ABC, abstractmethod
from typing import Any, cast

import numpy as np
import pytest

import agp
from agp import tree
from agp._deprecated import former_methods
from agp.io._classes import FORMER_NAMES, find_class, known_classes
from agp.processes import LinearMixing, Process


@former_methods(grown="add_rows", chosen="is_chosen")
class Part(ABC):
    calls: tuple = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.calls = (*cls.calls, cls.__name__)

    def add_rows(self, count):
        return ["base", count]

    @property
    @abstractmethod
    def is_chosen(self) -> bool: ...


class New(Part):
    @property
    def is_chosen(self) -> bool:
        return True


def test_a_call_by_the_former_name_warns_and_goes_to_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"Part\.grown is now called add_rows") as told:
        assert New().grown(3) == ["base", 3]
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Part\.chosen is now called is_chosen"):
        assert New().chosen is True


def test_a_subclass_with_former_names_warns_and_serves_the_new_ones():
    with pytest.warns(DeprecationWarning, match=r"Old\.(grown|chosen) is now called"):

        class Old(Part):
            chosen = False

            def grown(self, count):
                return [*super().grown(count), "old"]

    old: Any = cast("Any", Old)()
    with pytest.warns(DeprecationWarning, match=r"Part\.grown"):
        assert old.add_rows(2) == ["base", 2, "old"]
    assert old.is_chosen is False


def test_a_class_keeps_what_it_does_with_subclasses():
    assert New.calls == ("New",)


def test_parts_of_the_package_answer_to_former_names():
    kernel = agp.RBF(np.asarray(2.0), np.asarray(1.0))
    with pytest.warns(DeprecationWarning, match=r"Kernel\.scaled_by is now called scale_by"):
        doubled = kernel.scaled_by(np.asarray(2.0))
    assert float(doubled.variance) == 4.0
    with pytest.warns(DeprecationWarning, match=r"agp\.processes\.Mixed is now called"):
        assert agp.processes.Mixed is LinearMixing
    with pytest.warns(DeprecationWarning, match=r"agp\.tree\.replaced is now called"):
        assert agp.tree.replaced is tree.replace
    assert issubclass(LinearMixing, Process)


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_files_with_former_names_of_classes_are_read(name):
    assert find_class(name, known_classes(()), "file").__name__ == FORMER_NAMES[name].rpartition(".")[2]
