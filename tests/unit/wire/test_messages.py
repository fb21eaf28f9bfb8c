"""Requests and answers are declared once: every request has its answer, and survives the way through JSON."""

from __future__ import annotations

import json

import pytest

from cellbox.wire import messages


def test_every_request_has_one_answer_and_one_name() -> None:
    assert set(messages.ANSWERS) == set(messages.OPERATIONS.values())
    assert all(name == request.op for name, request in messages.OPERATIONS.items())


def test_a_request_survives_json() -> None:
    request = messages.Exec(command="echo ü", env={"A": "1"}, timeout_seconds=1.5)
    assert messages.request_from_fields(json.loads(json.dumps(messages.to_fields(request)))) == request


@pytest.mark.parametrize("fields", [{}, {"op": "no.such"}, {"op": "exec"}, {"op": "ping", "extra": 1}])
def test_a_malformed_request_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.request_from_fields(dict(fields))
