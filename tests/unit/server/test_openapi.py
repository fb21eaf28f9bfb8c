"""The committed document is what the operations say, and says it without loose ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from cellbox.protocol.operations import OPERATIONS

ROOT = Path(__file__).parents[3]


def test_the_committed_document_is_current() -> None:
    script = ROOT / "tools" / "openapi.py"
    environment = {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, str(script), "--check"], check=True, env=environment)


def test_every_operation_and_every_reference_is_there() -> None:
    text = (ROOT / "openapi.json").read_text()
    document = json.loads(text)
    described = {operation["operationId"] for path in document["paths"].values() for operation in path.values()}
    assert set(OPERATIONS) <= described
    names = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert names <= set(document["components"]["schemas"])
