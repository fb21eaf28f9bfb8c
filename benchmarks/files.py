"""Files and workspaces through the SDK: a gigabyte each way with the memory it takes, large directories, mounts.

`CELLBOX_API_URL=… python benchmarks/files.py [--bytes N] [--daemon PID]` prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cellbox import Client, Sandbox

CHUNK = bytes(range(256)) * 1024


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return round(time.perf_counter() - start, 4)


def chunks(size: int) -> Iterator[bytes]:
    while size > 0:
        yield CHUNK[:size]
        size -= len(CHUNK)


def peak_kb(pid: int | None) -> int | None:
    """The most memory that a process has ever taken."""
    if pid is None:
        return None
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])


def measure(client: Client, size: int, daemon: int | None) -> dict[str, Any]:
    figures: dict[str, Any] = {"bytes": size}
    figures["create_s"] = [seconds(lambda: Sandbox.create(client=client).kill()) for _ in range(5)]
    figures["create_with_workspace_s"] = [
        seconds(lambda: Sandbox.create(client=client, workspace="benchmark").kill()) for _ in range(5)
    ]
    workspace = client.workspaces.get("benchmark")
    figures["workspace_first_call_s"] = seconds(lambda: workspace.list("/"))
    figures["workspace_call_s"] = seconds(lambda: workspace.list("/"))
    disk_mb = (size >> 20) + 512
    with Sandbox.create(client=client, template="base", disk_mb=disk_mb, workspace="benchmark") as sandbox:
        files = sandbox.filesystem
        before = peak_kb(daemon)
        figures["upload_s"] = seconds(lambda: files.upload(chunks(size), "/tmp/big"))
        figures["download_s"] = seconds(lambda: sum(len(chunk) for chunk in files.iter_bytes("/tmp/big")))
        files.remove("/tmp/big")
        after = peak_kb(daemon)
        figures["daemon_grew_kb"] = after - before if before is not None and after is not None else None
        figures["client_peak_kb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sandbox.exec("mkdir /tmp/many && cd /tmp/many && seq 100000 | xargs touch", timeout_seconds=300, check=True)
        figures["list_100000_s"] = seconds(lambda: files.list("/tmp/many"))
        figures["pages_of_100000_s"] = seconds(lambda: sum(1 for _ in files.iter_directory("/tmp/many")))
        for place in ("/tmp", "/workspace"):
            made = sandbox.exec(f"cd {place} && dd if=/dev/zero of=dd bs=1M count=256 conv=fsync 2>&1; rm dd")
            figures[f"write_256_mb_to_{place[1:]}"] = made.stdout.strip().splitlines()[-1]
    workspace.delete()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--daemon", type=int, help="its process id, to see what memory it takes")
    given = parser.parse_args()
    with Client() as client:
        json.dump(measure(client, given.bytes, given.daemon), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
