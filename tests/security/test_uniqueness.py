"""Two sandboxes from one snapshot share nothing that ought to be unique, not even in the kernel forked before it."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from typing import Any

import pytest

import cellbox

DRAW = """
import os, random, secrets, ssl, tempfile, uuid
import numpy as np
from pathlib import Path
drawn = {
    'random': random.random(),
    'numpy': float(np.random.rand()),
    'numpy generator': float(np.random.default_rng().random()),
    'uuid4': str(uuid.uuid4()),
    'uuid1': str(uuid.uuid1()),
    'secrets': secrets.token_hex(16),
    'urandom': os.urandom(16).hex(),
    'OpenSSL': ssl.RAND_bytes(16).hex(),
    'temporary name': tempfile.mktemp(),
    'hash of a str': hash('x') if os.environ.get('PYTHONHASHSEED') else random.getrandbits(64),
    'hostname': Path('/etc/hostname').read_text(),
    'uname': os.uname().nodename,
    'machine id': Path('/etc/machine-id').read_text(),
}
drawn
"""
COMMAND = """
echo $RANDOM$RANDOM
head -c 16 /dev/urandom | od -An -tx1
cat /proc/sys/kernel/random/uuid
python3 -c 'import random; print(random.random())'
mktemp -u
hostname
"""


@pytest.fixture(scope="module")
def twins(client: cellbox.Client) -> Iterator[list[cellbox.Sandbox]]:
    deadline = time.monotonic() + 60
    while True:  # the first create after a change of the guest boots, and bakes the snapshot for the others
        one = cellbox.Sandbox.create(client=client, ttl_seconds=300)
        if one.boot_mode == "snapshot":
            break
        one.kill()
        assert time.monotonic() < deadline
        time.sleep(1)
    boxes = [one, *(cellbox.Sandbox.create(client=client, ttl_seconds=300) for _ in range(2))]
    yield boxes
    for box in boxes:
        box.kill()


def draw(context: cellbox.CodeContext) -> dict[str, Any]:
    done = context.run_code(DRAW)
    assert done.error is None, done.error
    return ast.literal_eval(done.text or "")


def test_nothing_drawn_at_random_is_drawn_twice(twins: list[cellbox.Sandbox]) -> None:
    assert [box.boot_mode for box in twins] == ["snapshot"] * 3
    first = [box.create_code_context() for box in twins]  # their kernels were forked before the snapshot
    second = [box.create_code_context() for box in twins]
    drawn = [draw(context) for context in [*first, *second]]
    for name in drawn[0]:
        values = [one[name] for one in drawn]
        expected = 3 if name in {"hostname", "uname", "machine id"} else 6
        assert len(set(values)) == expected, f"{name}: {values}"
    commands = [box.exec(COMMAND).stdout.splitlines() for box in twins]
    for lines in zip(*commands, strict=True):
        assert len(set(lines)) == 3, lines


def test_a_seed_of_the_users_still_counts(twins: list[cellbox.Sandbox]) -> None:
    code = "import random, numpy as np\nrandom.seed(1)\nnp.random.seed(1)\n(random.random(), float(np.random.rand()))"
    assert len({box.run_code(code).text for box in twins}) == 1


def test_clocks_are_right_from_the_first_instruction_on(twins: list[cellbox.Sandbox]) -> None:
    for box in twins:
        for ask in (
            lambda box=box: float(box.run_code("import time\nprint(time.time())").stdout),
            lambda box=box: float(box.exec("date +%s.%N").stdout),
        ):
            before = time.time()
            assert before - 1 < ask() < time.time() + 1
        code = "import time\na = time.monotonic()\ntime.sleep(0.2)\nprint(time.monotonic() - a)"
        assert 0.19 < float(box.run_code(code).stdout) < 1
        steps = "import time\nt = [time.monotonic() for _ in range(10000)]\nprint(t == sorted(t) and t[0] >= 0)"
        assert box.run_code(steps).stdout == "True\n"


def test_the_same_after_it_was_frozen(twins: list[cellbox.Sandbox]) -> None:
    box = twins[0]
    before = float(box.run_code("import time\nprint(time.monotonic())").stdout)
    time.sleep(3)  # idle sandboxes are frozen after two seconds
    now = time.time()
    assert abs(float(box.run_code("print(time.time())").stdout) - now) < 1
    assert float(box.run_code("print(time.monotonic())").stdout) >= before
