"""Every way the engine can drive runsc works, not only the one the probe picks first."""

from pathlib import Path

import pytest

from cellbox.engines.base import Machine, MachineSpec
from cellbox.engines.gvisor import probe, self_test_guest
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.engines.gvisor.starts import Mode


@pytest.mark.parametrize("cgroups", [True, False])
@pytest.mark.parametrize("control", ["socket", "commands"])
async def test_boot_freeze_save_and_restore_work_in_every_mode(
    engine: GvisorEngine, tmp_path: Path, cgroups: bool, control: str
) -> None:
    ready = engine._started()
    starter = ready.starter(ready.runsc, Mode(cgroups=cgroups, control=control), width=1)

    async def start(spec: MachineSpec, image: Path | None, mode: Mode) -> Machine:
        assert mode == starter.mode
        return await engine._start_with(starter, spec, image)

    rootfs, image = tmp_path / "rootfs", tmp_path / "image"
    rootfs.mkdir()
    image.mkdir()
    self_test_guest.write_rootfs(rootfs)
    await probe._try(start, rootfs, image, starter.mode)


async def test_findings_are_kept_for_the_same_binary_and_boot(state: Path, runsc: Path) -> None:
    engine = GvisorEngine(state, runsc=runsc)
    await engine.start()
    first = await engine.probe()
    await engine.aclose()
    cached = (state / "probe.json").stat().st_mtime_ns
    await engine.start()
    assert await engine.probe() == first
    assert (state / "probe.json").stat().st_mtime_ns == cached
    await engine.aclose()


async def test_the_saved_state_is_no_longer_in_tiny_chunks(engine: GvisorEngine, rootfs: Path, tmp_path: Path) -> None:
    from cellbox.engines.gvisor.image import reframe
    from cellbox.testing.engine_conformance import running, shell_spec

    async with running(engine, shell_spec(rootfs)) as guest:
        await guest.machine.checkpoint(tmp_path, leave_running=True)
    assert not reframe(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
