# ruff: noqa: ARG002 - signatures of importlib
"""Runs a callback when a module has been imported, so that optional libraries are set up only when they are used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder


def on_import(name: str, callback: Callable[[], None]) -> None:
    """Call `callback` right after `name` was first imported, or now if it is there. Its failures are swallowed."""
    if name in sys.modules:
        _guarded(callback)
    else:
        sys.meta_path.insert(0, _Watcher(name, callback))


class _Watcher(MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name, self._callback = name, callback

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return None
        load, callback = spec.loader.exec_module, self._callback

        def load_then_call(module):
            load(module)
            _guarded(callback)

        spec.loader.exec_module = load_then_call
        return spec


def _guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:
        print(f"cellbox: {type(error).__name__}: {error}", file=sys.__stderr__)
