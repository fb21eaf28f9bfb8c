"""A bridge's process tree, of real processes: which of them are the kernel's own, and which keep a sandbox awake."""

from __future__ import annotations

import asyncio
import os
import sys

from cellbox.guest.kernel import protocol
from cellbox.guest.kernel.bridges import BridgeKernel
from cellbox.guest.kernel.kernelspecs import Kernelspec
from cellbox.guest.kernel.link import Link

_RUN = "import subprocess, sys; subprocess.run(sys.argv[1:])"


def test_a_shell_begun_anew_is_no_background_process(bench):
    async def flow() -> tuple[set[str], set[str]]:
        table = bench.table
        ours, theirs = protocol.packet_pair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        link = Link(ours, (out, err), b"\0" * protocol.TOKEN_BYTES)
        shell = ["bash", "-c", "sleep 60; true"]  # the sleep is a job of the user's
        run = [sys.executable, "-c", _RUN]
        child = table.spawn([*run, *run, *shell], env=dict(os.environ))
        table.mark_kernel(child.pid)
        spec = Kernelspec(name="bash", language="bash", directory="", argv=[], env={}, interrupt_mode="signal")
        kernel = BridgeKernel(table, link, child.pid, child.status, spec)

        def names() -> set[str]:
            members = table.members(child.pid, b"", table.snapshot())
            return {process.name for process in table.background(()) if process.pid in members}

        try:
            async with asyncio.timeout(30):
                while "sleep" not in names():
                    await asyncio.sleep(0.02)
            before = names()
            kernel.note_end_of_cell()
            return before, names()
        finally:
            await kernel.kill()
            link.close()
            for end in (theirs.fileno(), out_end, err_end):
                os.close(end)
            theirs.detach()

    before, after = bench.runner.run(flow())
    assert {"bash", "sleep"} <= before
    assert "bash" not in after
    assert "sleep" in after
