"""Errors: one root, one code each, one page that explains them all."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from cellbox import errors

ROOT = Path(__file__).parents[2]
ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BaseException)]
CODED = [kind for kind in ALL if issubclass(kind, errors.APIError) and kind is not errors.APIError]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_under_the_root_and_ends_in_error(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.CellboxError)
    assert kind.__name__.endswith("Error")
    assert kind.__doc__


def test_every_code_is_its_own() -> None:
    codes = [kind.code for kind in CODED]
    assert len(codes) == len(set(codes))
    assert all(errors.APIError.by_code[kind.code] is kind for kind in CODED)


@pytest.mark.parametrize("kind", CODED)
def test_every_code_has_a_heading(kind: type[errors.APIError]) -> None:
    assert f"### `{kind.code}` ({kind.status})" in (ROOT / "docs" / "errors.md").read_text()


@pytest.mark.parametrize("kind", ALL)
def test_the_tree_in_the_docstring_is_complete(kind: type[Exception]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", CODED)
def test_a_genuine_error_never_looks_like_one_to_retry(kind: type[errors.APIError]) -> None:
    """A published client of this wire retries on these words; no code or class may carry them by accident."""
    assert not {"connection refused", "no route to host", "i/o timeout"} & {kind.code}
