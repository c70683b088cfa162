"""No operation without a slow reference, and none that its test does not import."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import rookery.ops

MODULES = [module.name for module in pkgutil.iter_modules(rookery.ops.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_every_operation_has_a_reference_and_a_test(name: str) -> None:
    module = importlib.import_module(f"rookery.ops.{name}")
    reference = importlib.import_module(f"tests.reference.{name}_reference")
    test = importlib.import_module(f"tests.reference.test_{name}")
    operations = {
        function_name: function
        for function_name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not function_name.startswith("_")
    }
    assert operations
    for function_name, function in operations.items():
        assert hasattr(reference, function_name), f"no reference for {name}.{function_name}"
        assert getattr(test, function_name, None) is function, f"{function_name} is not tested"
