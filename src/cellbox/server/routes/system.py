"""The daemon itself: is it there, what is it, what can this host do."""

from __future__ import annotations

from cellbox._version import __version__
from cellbox.protocol import operations
from cellbox.protocol.account import Capabilities, Health, ProblemInfo, Version
from cellbox.protocol.operations import Operation
from cellbox.server.answers import BytesAnswer
from cellbox.server.call import Answer, Call
from cellbox.server.metrics import CONTENT_TYPE
from cellbox.server.routing import Handlers

handlers = Handlers()

get_health = Operation(
    name="get_health",
    method="GET",
    path="/healthz",
    summary="Whether the daemon answers.",
    body=type(None),
    result=Health,
    scope="public",
)
get_version = Operation(
    name="get_version",
    method="GET",
    path="/version",
    summary="What answers here.",
    body=type(None),
    result=Version,
    scope="public",
)
get_metrics = Operation(
    name="get_metrics",
    method="GET",
    path="/metrics",
    summary="Figures for Prometheus.",
    body=type(None),
    result=str,
    scope="public",
)
_BOTH = ("", "/v1")


@handlers.handles(get_health, prefixes=_BOTH)
async def health(_call: Call[None]) -> Health:
    return Health(status="ok")


@handlers.handles(get_version, prefixes=_BOTH)
async def version(_call: Call[None]) -> Version:
    return Version(name="cellbox", version=__version__)


@handlers.handles(get_metrics, prefixes=_BOTH)
async def metrics(call: Call[None]) -> str | Answer:
    return BytesAnswer(call.metrics.text(), CONTENT_TYPE)


@handlers.handles(operations.get_capabilities)
async def get_capabilities(call: Call[None]) -> Capabilities:
    probe = await call.control.engine.probe()
    return Capabilities(
        engine=probe.engine,
        engine_version=probe.version,
        usable=probe.usable,
        enforced=dict(probe.enforced),
        facts=dict(probe.facts),
        problems=[
            ProblemInfo(summary=problem.summary, fix=problem.fix, fatal=problem.fatal) for problem in probe.problems
        ],
        advisories=list(probe.advisories),
        server_version=__version__,
    )
