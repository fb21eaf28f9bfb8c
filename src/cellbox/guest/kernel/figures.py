"""matplotlib: every figure of a cell becomes one display, with or without `plt.show()`, and is then closed.

`show()` sends a figure where it is called; what is still open at the end of the cell follows the last value, unless it
was saved to a file and never shown. The last value's text (`Axes(…)`, lists of artists) is left out when figures came.
"""

from __future__ import annotations

import io
import sys
import warnings
from typing import Any

from cellbox.guest.kernel import charts, errors, fonts
from cellbox.guest.kernel.display import CHART, Displays
from cellbox.guest.kernel.imports import on_import

_MAX_PIXELS = 40_000_000  # a figure over this is drawn at a lower resolution instead of taking the memory
_LOOK_INTO = 20  # elements of a last value that are looked at for artists


class Figures:
    """The figures of one kernel."""

    def __init__(self, displays: Displays) -> None:
        self._displays = displays
        self._handled: list[Any] = []  # shown or saved in this cell; the references keep ids from being used again
        self._shown = 0
        self.formats: set[str] = {"png"}
        on_import("matplotlib.pyplot", self._set_up)

    def begin_cell(self) -> None:
        self._handled.clear()
        self._shown = 0

    def is_noise(self, value: Any) -> bool:
        """Tell whether a last value is only what a plotting call happened to return."""
        return "matplotlib.pyplot" in sys.modules and bool(self._shown or self._pending()) and _holds_artist(value, 0)

    def has_shown(self, value: Any) -> bool:
        """Tell whether the value is a figure that this cell has displayed already."""
        return self._shown > 0 and any(value is figure for figure in self._handled)

    def bundle(self, figure: Any) -> dict[str, Any]:
        """Return a figure's representations and its chart, for `display(figure)` and a figure as last value."""
        self._handled.append(figure)
        self._shown += 1
        bundle = {name: data for name, data in self._render(figure).items() if data}
        return bundle | {CHART: charts.describe(figure)} if bundle else {}

    def show(self) -> None:
        """What `plt.show()` does."""
        for figure in self._pending(saved=True):
            self._send(figure)
        self._close()

    def harvest(self, *, is_main: bool) -> None:
        """Send what the cell left open. The first is the main result if the cell's last value stands for it."""
        if "matplotlib.pyplot" not in sys.modules:
            return
        for figure in self._pending():
            self._send(figure, is_main=is_main)
            is_main = False
        self._close()

    def _send(self, figure: Any, *, is_main: bool = False) -> None:
        bundle = self.bundle(figure)
        if not bundle:
            return
        bundle["text/plain"] = repr(figure)
        self._displays.send(bundle, source="figure", is_main=is_main)

    def _pending(self, *, saved: bool = False) -> list[Any]:
        pyplot = sys.modules["matplotlib.pyplot"]
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()] if pyplot.get_fignums() else []
        return [
            figure
            for figure in figures
            if (figure.axes or figure.lines or figure.images or figure.texts or figure.patches)
            and not any(figure is other for other in self._handled)
            and (saved or not getattr(figure, "_cellbox_saved", False))
        ]

    def _close(self) -> None:
        pyplot = sys.modules["matplotlib.pyplot"]
        if pyplot.get_fignums():
            pyplot.close("all")

    def _render(self, figure: Any) -> dict[str, Any]:
        if not (figure.axes or figure.lines or figure.images or figure.texts or figure.patches):
            return {}
        fonts.refresh()
        scale = 2.0 if "retina" in self.formats else 1.0
        width, height = figure.get_size_inches()
        dpi = figure.dpi * scale
        dpi = min(dpi, max(1.0, (_MAX_PIXELS / max(width * height, 1e-9)) ** 0.5))
        kinds = ["jpeg" if self.formats & {"jpeg", "jpg"} else "png"]
        if "svg" in self.formats:
            kinds.append("svg")
        names = {"png": "image/png", "jpeg": "image/jpeg", "svg": "image/svg+xml"}
        return {names[kind]: self._draw(figure, kind, dpi) for kind in kinds}

    def _draw(self, figure: Any, kind: str, dpi: float) -> bytes | None:
        # Warnings turned into errors by the cell, or a layout that "tight" can't do, must not lose the picture.
        tight = {"bbox_inches": "tight"}
        failure: Exception | None = None
        for options, is_strict in ((tight, True), (tight, False), ({}, False)):
            try:
                with warnings.catch_warnings():
                    if not is_strict:
                        warnings.simplefilter("ignore")
                    return _print(figure, kind, dpi, options)
            except Warning as warning:
                sys.stderr.write(f"{type(warning).__name__}: {warning}\n")
                failure = warning
            except Exception as error:
                failure = error
        sys.stderr.write(f"This figure could not be drawn:\n{errors.describe(failure)['traceback']}")
        return None

    def _set_up(self) -> None:
        from matplotlib import pyplot
        from matplotlib.figure import Figure

        figures, save = self, Figure.savefig

        def show(*_args, **_options):
            """Display every open figure."""
            figures.show()

        def show_figure(self, *_args, **_options):
            figures._send(self)

        def savefig(self, *args, **options):
            self._cellbox_saved = True
            return save(self, *args, **options)

        savefig.__doc__ = save.__doc__
        pyplot.show = show  # a function: pyplot sets attributes on it
        Figure.show, Figure.savefig = show_figure, savefig
        fonts.install()
        charts.install()


def _print(figure: Any, kind: str, dpi: float, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    if figure.canvas is None or not hasattr(figure.canvas, "print_figure"):
        from matplotlib.backend_bases import FigureCanvasBase

        FigureCanvasBase(figure)
    figure.canvas.print_figure(
        buffer,
        format=kind,
        dpi=dpi,
        facecolor=figure.get_facecolor(),
        edgecolor=figure.get_edgecolor(),
        **options,
    )
    return buffer.getvalue()


def _holds_artist(value: Any, depth: int) -> bool:
    if type(value).__module__.startswith(("matplotlib.", "mpl_toolkits.", "seaborn.")):
        return depth > 0 or type(value).__name__ != "Figure"
    if depth > 3:
        return False
    if isinstance(value, dict):
        return any(_holds_artist(item, depth + 1) for item in list(value.values())[:_LOOK_INTO])
    if isinstance(value, (list, tuple)):
        return any(_holds_artist(item, depth + 1) for item in value[:_LOOK_INTO])
    if str(getattr(value, "dtype", "")) == "object" and hasattr(value, "tolist"):  # an array or Series of Axes
        return any(_holds_artist(item, depth + 1) for item in list(getattr(value, "flat", value))[:_LOOK_INTO])
    return False
