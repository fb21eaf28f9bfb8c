from __future__ import annotations

import base64
from pathlib import Path

import pytest

from cellbox.client._results import Execution, Result
from cellbox.errors import CodeFailedError
from cellbox.protocol import contexts


def test_accessors_decode_what_is_json() -> None:
    result = Result({"application/json": '{"a": 1}', "application/vnd.plotly.v1+json": "[1]", "text/latex": "$x$"})
    assert (result.json, result.plotly, result.latex, result.png, result.chart) == ({"a": 1}, [1], "$x$", None, None)
    assert result._repr_mimebundle_(exclude=["text/latex"]) == {
        "application/json": {"a": 1},
        "application/vnd.plotly.v1+json": [1],
    }


def test_save_picks_the_representation(tmp_path: Path) -> None:
    result = Result({"image/svg+xml": "<svg/>", "image/png": base64.b64encode(b"\x89PNG").decode(), "text/plain": "f"})
    assert result.save(tmp_path / "a.png").read_bytes() == b"\x89PNG"
    assert result.save(tmp_path / "a.svg").read_text() == "<svg/>"
    assert result.save(tmp_path / "a").read_bytes() == b"\x89PNG"
    with pytest.raises(ValueError, match="no application/pdf"):
        result.save(tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="no image to save, only text/plain"):
        Result({"text/plain": "f"}).save(tmp_path / "b")


def test_error_is_raised_on_request() -> None:
    Execution(contexts.Execution(stdout="a")).raise_for_error()
    failed = Execution(contexts.Execution(stdout="a\n", error="Traceback …\nKeyError: 'x'", exit=1))
    with pytest.raises(CodeFailedError, match="KeyError") as caught:
        failed.raise_for_error()
    assert caught.value.execution is failed
    assert str(failed) == "a\nTraceback …\nKeyError: 'x'"


def test_killed_kernel_is_an_error_even_without_text() -> None:
    with pytest.raises(CodeFailedError, match="died"):
        Execution(contexts.Execution(outcome="died", state_kept=False)).raise_for_error()
