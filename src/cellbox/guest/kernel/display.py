"""Turns Python objects into the MIME bundles of `Display` messages: every value a string, every size bounded."""

from __future__ import annotations

import base64
import json
import math
import sys
from typing import Any

from cellbox.guest.kernel import errors, limits
from cellbox.guest.kernel.streams import Outbox

PLAIN = "text/plain"
CHART = "application/vnd.cellbox.chart+json"
"""Key under which a figure's chart description travels inside this package; it becomes `Display.chart`."""


class Displays:
    """Formats and sends the displays of one kernel, and counts what was left out of the cell in hand."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.dropped = 0
        self._count = 0
        self._bytes = 0

    def begin_cell(self) -> None:
        self.dropped = self._count = self._bytes = 0

    def broken_repr(self, error: BaseException) -> None:
        """Report what an object's repr raised, without failing the cell."""
        sys.stderr.write(errors.describe(error)["traceback"])

    def send(self, data: dict[str, Any], *, source: str = "display", is_main: bool = False, now: bool = True) -> None:
        """Send one display, or count it as dropped."""
        chart = data.pop(CHART, "")
        bundle, omitted = encode_bundle(data)
        size = sum(map(len, bundle.values())) + len(chart)
        if self._count >= limits.MAX_DISPLAYS or self._bytes + size > limits.MAX_DISPLAY_BYTES:
            if not is_main:
                self.dropped += 1
                return
            # The last value is what the cell was run for: at least its text gets through.
            omitted |= {name: len(text) for name, text in bundle.items() if name != PLAIN}
            bundle = {name: text for name, text in bundle.items() if name == PLAIN}
        if not bundle and not omitted:
            return
        self._count += 1
        self._bytes += size
        document = {
            "type": "display",
            "bundle": bundle,
            "is_main": is_main,
            "source": source,
            "omitted": omitted,
            "chart": chart,
        }
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        self._outbox.message(text.encode("utf-8", "replace"), now=now)


def encode_bundle(data: dict[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Return (MIME type → text, MIME type → size of what was over its cap)."""
    bundle: dict[str, str] = {}
    omitted: dict[str, int] = {}
    for name, value in data.items():
        if value is None or not isinstance(name, str) or name == "type":
            continue
        try:
            text = _encode(name, value)
        except Exception as error:
            text = f"<{name} could not be encoded: {type(error).__name__}>" if name == PLAIN else ""
        if name == PLAIN:
            bundle[name] = limits.cut_end(text, limits.MAX_PLAIN, "; print the part you need")
        elif len(text) > (limits.MAX_TEXT if _is_text(name) else limits.MAX_BINARY):
            omitted[name] = len(text)
        elif text:
            bundle[name] = text
    if "image/png" in bundle:
        bundle.pop("image/jpeg", None)  # PIL offers every image both ways
    return bundle, omitted


def to_json(value: Any) -> str:
    """Return standard JSON whatever is in the value: no NaN, no infinities, string keys; the rest by `str`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_plain_json(value, 0), ensure_ascii=False, allow_nan=False)


def _is_text(name: str) -> bool:
    return name.startswith("text/")


def _encode(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        if _is_text(name) or name.endswith("+xml"):
            return bytes(value).decode("utf-8", "replace")
        return base64.b64encode(value).decode("ascii")
    if "json" in name or isinstance(value, (dict, list, tuple)):
        return to_json(value)
    return str(value)


def _plain_json(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > 50:
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain_json(item, depth + 1) for item in value]
    for method in ("isoformat", "tolist"):  # dates; numpy and pandas values
        if callable(getattr(value, method, None)):
            return _plain_json(getattr(value, method)(), depth + 1)
    return str(value)
