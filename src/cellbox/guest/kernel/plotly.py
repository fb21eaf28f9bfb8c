"""plotly: a figure is one display with its JSON, small HTML and, where kaleido works, a PNG that needs no network.

The page does not carry the library (4 MB): it uses the `Plotly` that a front end has loaded, or else fetches the same
version from plotly's CDN, and says so where it can't. kaleido runs for the rest of the cell and under a deadline; when
it fails, this kernel does not try again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from cellbox.guest.kernel.display import Displays
from cellbox.guest.kernel.imports import on_import

MIME = "application/vnd.plotly.v1+json"
_DEADLINE_SECONDS = 12.0  # a cold Chromium under gVisor takes 2 to 5
_WIDTH, _HEIGHT = 700, 500  # plotly's own defaults for images
_CHROMIUM = (
    "--disable-gpu",
    "--allow-file-access-from-files",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
    "--no-sandbox",
)

_PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"></head><body>
<div id="{id}" style="width:100%;height:{height}px"></div>
<script>(function () {{
  var figure = {figure};
  var place = document.getElementById("{id}");
  function draw() {{ Plotly.newPlot(place, figure.data || [], figure.layout || {{}}, {{responsive: true}}); }}
  if (window.Plotly) {{ draw(); return; }}
  var library = document.createElement("script");
  library.src = "https://cdn.plot.ly/plotly-{version}.min.js";
  library.onload = draw;
  library.onerror = function () {{ place.textContent = "This chart needs plotly.js, which could not be loaded."; }};
  document.head.appendChild(library);
}})();</script>
</body></html>
"""


class Plotly:
    """Plotly support of one kernel."""

    def __init__(self, displays: Displays) -> None:
        self._displays = displays
        self._renderer: _Kaleido | None = None
        self._has_failed = False
        on_import("plotly.io", self._set_up)

    def bundle(self, figure: Any) -> dict[str, Any]:
        """Return a figure's representations."""
        text = figure.to_json()
        height = int(figure.layout.height or _HEIGHT)
        data = {MIME: text, "text/html": _page(text, height), "text/plain": f"<plotly figure: {_summary(figure)}>"}
        image = self._draw(text, int(figure.layout.width or _WIDTH), height)
        if image:
            data["image/png"] = image
        return data

    def end_cell(self) -> None:
        """End the renderer: Chromium's processes would count against the sandbox's limits and keep it awake."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _draw(self, figure: str, width: int, height: int) -> str:
        if self._has_failed:
            return ""
        try:
            if self._renderer is None:
                self._renderer = _Kaleido.start()
            if self._renderer is None:
                self._has_failed = True
                return ""
            return self._renderer.draw(figure, width, height)
        except (OSError, ValueError, TimeoutError):
            self._has_failed = True
            self.end_cell()
            return ""

    def _set_up(self) -> None:
        import plotly.io

        def show(fig, *_args, **_options):
            import plotly.graph_objects

            figure = fig if hasattr(fig, "to_json") else plotly.graph_objects.Figure(fig)
            self._displays.send(self.bundle(figure))

        plotly.io.show = show
        pio_renderers = sys.modules.get("plotly.io._renderers")
        if pio_renderers is not None:
            pio_renderers.show = show


def _page(figure: str, height: int) -> str:
    from plotly.offline import get_plotlyjs_version

    safe = figure.replace("<", "\\u003c")  # no "</script>" in the midst of the data
    return _PAGE.format(id=f"plotly-{uuid.uuid4().hex}", height=height, figure=safe, version=get_plotlyjs_version())


def _summary(figure: Any) -> str:
    title = getattr(figure.layout.title, "text", None)
    kinds = ", ".join(dict.fromkeys(trace.type or "trace" for trace in figure.data)) or "no data"
    return f"{kinds}, {title!r}" if title else kinds


class _Kaleido:
    """The Chromium that comes with kaleido 0.2, spoken to by lines of JSON."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._rest = b""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)

    @classmethod
    def start(cls) -> _Kaleido | None:
        """Return a renderer that has reported for duty; None when kaleido is not there."""
        package = importlib.util.find_spec("kaleido")
        library = importlib.util.find_spec("plotly")
        if package is None or not package.origin or library is None or not library.origin:
            return None
        program = Path(package.origin).parent / "executable" / "kaleido"
        script = Path(library.origin).parent / "package_data" / "plotly.min.js"
        if not program.is_file() or not script.is_file():
            return None
        arguments = [str(program), "plotly", f"--plotlyjs='{script.as_uri()}'", *_CHROMIUM]
        renderer = cls(
            subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        try:
            renderer._answer(time.monotonic() + _DEADLINE_SECONDS)
        except BaseException:
            renderer.close()
            raise
        return renderer

    def draw(self, figure: str, width: int, height: int) -> str:
        """Return a PNG as base64. Raises when there is none before the deadline."""
        request = f'{{"format":"png","width":{width},"height":{height},"scale":1,"data":{figure}}}\n'
        assert self._process.stdin is not None
        self._process.stdin.write(request.encode())
        self._process.stdin.flush()
        return str(self._answer(time.monotonic() + _DEADLINE_SECONDS)["result"])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            try:
                stream.close()
            except OSError:
                continue
        self._process.wait()

    def _answer(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("kaleido did not answer")
                data = os.read(output, 1 << 20)
                if not data:
                    raise ValueError("kaleido has ended")
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if answer.get("code", 0):
            raise ValueError(str(answer.get("message")))
        return answer
