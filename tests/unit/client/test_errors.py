from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from cellbox.client._errors import capacity_delays, error_from_answer, retry_after_seconds
from cellbox.errors import APIError, CapacityError, PathNotFoundError, QuotaExceededError


def test_every_code_of_the_table_comes_back_as_its_class() -> None:
    for code, kind in APIError.by_code.items():
        error = error_from_answer(kind.status, [], f'{{"error":"m","code":"{code}","details":{{"a":1}}}}'.encode())
        assert type(error) is kind
        assert error.details == {"a": 1}


def test_retry_after_in_all_its_forms() -> None:
    assert retry_after_seconds("1.5") == 1.5
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after_seconds(later) == pytest.approx(30, abs=2)
    assert (retry_after_seconds(""), retry_after_seconds("soon"), retry_after_seconds("-1")) == (None, None, 0)


def test_only_refusals_with_a_date_are_tried_again() -> None:
    busy = CapacityError("busy", retry_after_seconds=2)
    delay = capacity_delays(busy, 0, 60)
    assert delay is not None
    assert 2 <= delay <= 3
    assert capacity_delays(busy, 0, 1) is None
    assert capacity_delays(CapacityError("busy"), 0, 60) is None
    assert capacity_delays(QuotaExceededError("quota"), 0, 60) is None
    assert capacity_delays(PathNotFoundError("x", retry_after_seconds=1), 0, 60) is None


def test_refusal_in_foreign_words_is_still_one_of_capacity() -> None:
    error = error_from_answer(503, [(b"Retry-After", b"5")], b'{"error":"no compute capacity available"}')
    assert isinstance(error, CapacityError)
    assert error.retry_after_seconds == 5
