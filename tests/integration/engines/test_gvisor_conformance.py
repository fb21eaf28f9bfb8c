"""The gVisor engine against the contract of all engines."""

from cellbox.testing.engine_conformance import EngineConformance


class TestGvisor(EngineConformance):
    pass
