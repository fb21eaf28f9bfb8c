"""A sender that obeys its credit never overfills a receiver, and never waits for credit that is not coming."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cellbox.wire import flow

sizes = st.integers(1, 64 * 1024)


@given(st.lists(sizes, min_size=1, max_size=200), st.data())
def test_obedient_senders_are_never_refused_and_never_starve(payloads: list[int], data: st.DataObject) -> None:
    credit, window = flow.SendCredit(), flow.ReceiveWindow()
    in_flight: list[int] = []
    for size in payloads:
        while not credit.is_open:
            assert in_flight, "the sender is out of credit although the receiver has taken everything"
            _take(window, credit, in_flight.pop(0))
        credit.spend(size)
        assert window.receive(size)
        in_flight.append(size)
        if in_flight and data.draw(st.booleans()):
            _take(window, credit, in_flight.pop(0))


def _take(window: flow.ReceiveWindow, credit: flow.SendCredit, size: int) -> None:
    returned = window.take(size)
    if returned is not None:
        credit.refill(returned)


def test_a_sender_without_credit_is_noticed() -> None:
    window = flow.ReceiveWindow()
    assert window.receive(flow.WINDOW_BYTES)
    assert not window.receive(1)
