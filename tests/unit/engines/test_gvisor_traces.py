"""Which processes of the host count as an installation's own."""

from pathlib import Path

import pytest

from cellbox.engines.gvisor.layout import Layout
from cellbox.engines.gvisor.traces import machine_of

_LAYOUT = Layout(Path("/s"))


@pytest.mark.parametrize(
    ("arguments", "machine"),
    [
        (("runsc-sandbox", "--root=/s/r", "boot", "--bundle=/s/machines/ab-1", "ab-1"), "ab-1"),
        (("runsc-gofer", "gofer", "--bundle=/s/machines/ab-1", "--root=/s/r", "--io-fds=5"), "ab-1"),
        (("/opt/runsc", "--root=/s/r", "create", "--bundle", "/s/machines/ab-1", "ab-1"), "ab-1"),
        (("runsc-gofer", "--root=/s/r", "gofer", "--io-fds=5"), None),  # cut off
        (("runsc-sandbox", "--root=/s/r2", "boot", "ab-1"), None),  # another installation
        (("runsc-sandbox", "--root=/s", "boot", "ab-1"), None),
        (("runsc-sandbox", "--root=/s/r", "boot", "../../etc"), None),
        (("runsc-sandbox", "--root=/s/r", "boot", "--bundle=/s/machines/.."), None),
        (("vim", "--root=/s/r", "ab-1"), None),
        ((), None),
    ],
)
def test_only_our_own_root_makes_a_process_ours(arguments: tuple[str, ...], machine: str | None) -> None:
    assert machine_of(arguments, _LAYOUT) == machine
