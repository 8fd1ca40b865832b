"""Every module of the benchmarks can be imported: a renamed function is noticed without running them."""

import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_imported(name):
    importlib.import_module(name)
