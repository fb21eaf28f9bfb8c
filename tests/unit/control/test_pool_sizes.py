"""How many sandboxes are wanted ready follows from settings and demand, and a wrong setting is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cellbox.control.pool import is_plain
from cellbox.control.pool_sizes import Demand, parse_sizes, shape_of, size_of, wanted
from cellbox.engines.base import MachineSpec
from cellbox.errors import ConfigurationError
from cellbox.protocol.pool import PoolSize
from cellbox.protocol.sandboxes import CreateSandbox

DEFAULT = MachineSpec(
    machine_id="", rootfs=Path("/t"), argv=("a",), env={}, memory_mb=1024, disk_mb=64, cpu=1, tasks=64
)
LARGE = replace(DEFAULT, memory_mb=4096)
OUTDATED = replace(DEFAULT, rootfs=Path("/older"))


def test_sizes_are_read() -> None:
    assert parse_sizes(["base=2", "a.b-c=0-3", "*=1"]) == {
        "base": PoolSize(min=2, max=2),
        "a.b-c": PoolSize(min=0, max=3),
        "*": PoolSize(min=1, max=1),
    }


@pytest.mark.parametrize("entry", ["base", "base=", "base=-1", "base=3-2", "a/b=1", "base=1-", "base=9999", "=1"])
def test_a_wrong_size_is_named(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="pool: "):
        parse_sizes([entry])


@pytest.mark.parametrize(
    ("least", "most", "asked", "expected"),
    [
        (2, 2, [], [DEFAULT, DEFAULT]),
        (0, 3, [], []),
        (0, 3, [DEFAULT], [DEFAULT]),
        (0, 2, [LARGE, DEFAULT, LARGE], [LARGE, DEFAULT]),
        (1, 3, [LARGE, LARGE, LARGE], [LARGE, LARGE, DEFAULT]),
        (2, 2, [LARGE, LARGE], [DEFAULT, DEFAULT]),
        (2, 2, [LARGE, DEFAULT], [DEFAULT, DEFAULT]),
        (1, 2, [LARGE, LARGE, DEFAULT], [LARGE, DEFAULT]),
        (1, 2, [DEFAULT], [DEFAULT]),
        (0, 2, [OUTDATED, DEFAULT], [DEFAULT]),
    ],
)
def test_demand_counts_within_the_size(
    least: int, most: int, asked: list[MachineSpec], expected: list[MachineSpec]
) -> None:
    assert wanted(PoolSize(min=least, max=most), DEFAULT, asked) == expected


def test_demand_is_by_template_and_newest_first() -> None:
    demand = Demand()
    for name, shape in (("a", DEFAULT), ("b", DEFAULT), ("a", LARGE)):
        demand.note(name, shape)
    assert demand.latest("a") == [LARGE, DEFAULT]
    assert demand.latest("c") == []


def test_a_templates_own_setting_holds_over_its_recipe_and_that_over_the_rest() -> None:
    sizes = parse_sizes(["base=2", "*=0-4"])
    assert size_of("base", sizes, 7) == PoolSize(min=2, max=2)
    assert size_of("node", sizes, 7) == PoolSize(min=7, max=7)
    assert size_of("node", sizes, 0) == PoolSize(min=0, max=4)
    assert size_of("node", {}, 0) == PoolSize(min=0, max=0)


def test_shapes_differ_in_all_but_the_name() -> None:
    assert shape_of(replace(DEFAULT, machine_id="a")) == shape_of(replace(DEFAULT, machine_id="b"))
    assert shape_of(DEFAULT) != shape_of(LARGE)


LATE = {
    "template": "base",
    "ttl_seconds": 5.0,
    "persistent": True,
    "metadata": {"a": "b"},
    "env": {"A": "b"},
    "cpu": 2.0,
    "memory_mb": 512,
    "disk_mb": 512,
    "disk_gb": 1.0,
}


def test_what_can_be_given_at_hand_out_does_not_lead_past_the_pool() -> None:
    assert is_plain(CreateSandbox(**LATE))


@pytest.mark.parametrize("field", [one for one in msgspec.structs.fields(CreateSandbox) if one.name not in LATE])
def test_every_other_wish_leads_past_the_pool(field: msgspec.structs.FieldInfo) -> None:
    assert not is_plain(msgspec.structs.replace(CreateSandbox(), **{field.name: object()}))
