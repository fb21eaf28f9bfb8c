"""Writes `openapi.json`; with `--check` it only says whether the committed one is current."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cellbox.protocol.openapi import openapi_document
from cellbox.protocol.operations import OPERATIONS
from cellbox.server.routes import system

FILE = Path(__file__).parents[1] / "openapi.json"


def render() -> str:
    """The document as text. Its version is the API's, so that a release alone changes nothing."""
    operations = [*OPERATIONS.values(), system.get_health, system.get_version, system.get_metrics]
    return json.dumps(openapi_document(operations, version="v1"), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Return the exit code."""
    if "--check" not in sys.argv[1:]:
        FILE.write_text(render(), encoding="utf-8")
        return 0
    if FILE.exists() and FILE.read_text(encoding="utf-8") == render():
        return 0
    print("openapi.json is not current: run `python tools/openapi.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
