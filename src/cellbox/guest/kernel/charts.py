"""Describes a matplotlib figure as data (type, title, axes, series), for clients that draw it themselves.

Only what is plainly recognisable is described: line, scatter, bar, histogram, pie and box charts. Anything else, and
anything that goes wrong, is an empty string: the picture never depends on it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from cellbox.guest.kernel import limits
from cellbox.guest.kernel.display import to_json


def install() -> None:
    """Remember the numbers behind box plots, which can't be read back from what is drawn."""
    from matplotlib.axes import Axes

    draw = Axes.bxp

    def bxp(self, stats, *args, **options):
        self._cellbox_boxes = [*getattr(self, "_cellbox_boxes", ()), *stats]
        return draw(self, stats, *args, **options)

    bxp.__doc__ = draw.__doc__
    Axes.bxp = bxp


def describe(figure: Any) -> str:
    """Return JSON text, or an empty string. Call it after the figure was drawn, when tick labels exist."""
    try:
        parts = [part for part in map(_describe_axes, figure.axes) if part]
        if not parts:
            return ""
        if len(parts) == 1:
            description = parts[0]
            description["title"] = description["title"] or figure.get_suptitle()
        else:
            description = {"type": "multiple", "title": figure.get_suptitle(), "charts": parts}
        text = to_json(description)
        return text if len(text) <= limits.MAX_CHART else ""
    except Exception:
        return ""


def _describe_axes(axes: Any) -> dict[str, Any] | None:
    for kind, read in (("pie", _pie), ("box", _boxes), ("bar", _bars), ("scatter", _scatter), ("line", _lines)):
        series = read(axes)
        if series:
            description = {
                "type": kind,
                "title": axes.get_title(),
                "x_label": axes.get_xlabel(),
                "y_label": axes.get_ylabel(),
                "x_scale": axes.get_xscale(),
                "y_scale": axes.get_yscale(),
                "series": series,
            }
            if kind == "bar" and all(one.pop("is_histogram") for one in series):
                description["type"] = "histogram"
            return description
    return None


def _pie(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    if not wedges:
        return []
    shares = [(wedge.theta2 - wedge.theta1) / 360 for wedge in wedges]
    return [{"label": "", "points": _points([(w.get_label(), s) for w, s in zip(wedges, shares, strict=True)])}]


def _boxes(axes: Any) -> list[dict[str, Any]]:
    return [
        {
            "label": str(box.get("label", "")),
            "minimum": box["whislo"],
            "first_quartile": box["q1"],
            "median": box["med"],
            "third_quartile": box["q3"],
            "maximum": box["whishi"],
            "outliers": list(box.get("fliers", ()))[: limits.MAX_POINTS],
        }
        for box in getattr(axes, "_cellbox_boxes", ())
    ]


def _bars(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.container import BarContainer

    series: list[dict[str, Any]] = []
    for container in axes.containers:
        if not isinstance(container, BarContainer) or not container.patches:
            continue
        bars = container.patches
        flat = getattr(container, "orientation", "vertical") == "horizontal"
        names = _tick_labels(axes.yaxis if flat else axes.xaxis)
        points, edges = [], []
        for bar in bars:
            start, extent = (bar.get_y(), bar.get_height()) if flat else (bar.get_x(), bar.get_width())
            value = bar.get_width() if flat else bar.get_height()
            middle = start + extent / 2
            points.append((names.get(round(middle, 6), middle), value))
            edges.append((start, start + extent))
        touching = len(edges) > 1 and all(
            abs(left[1] - right[0]) <= 1e-6 * max(abs(left[1] - left[0]), 1e-12) for left, right in pairwise(edges)
        )
        is_histogram = touching and not any(isinstance(point[0], str) for point in points)
        series.append({"label": _label(container), "points": _points(points), "is_histogram": is_histogram})
    return series


def _scatter(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.collections import PathCollection

    series = []
    for collection in axes.collections:
        if isinstance(collection, PathCollection):
            offsets = collection.get_offsets().tolist()[: limits.MAX_POINTS]
            series.append({"label": _label(collection), "points": _points([tuple(pair) for pair in offsets])})
    return series


def _lines(axes: Any) -> list[dict[str, Any]]:
    series = []
    for line in axes.lines:
        xs, ys = line.get_xdata(orig=True), line.get_ydata(orig=True)
        pairs = list(zip(list(xs)[: limits.MAX_POINTS], list(ys)[: limits.MAX_POINTS], strict=False))
        if pairs:
            series.append({"label": _label(line), "points": _points(pairs)})
    return series


def _tick_labels(axis: Any) -> dict[float, str]:
    from matplotlib.category import StrCategoryFormatter
    from matplotlib.ticker import FixedFormatter

    if not isinstance(axis.get_major_formatter(), (StrCategoryFormatter, FixedFormatter)):
        return {}
    labels = axis.get_majorticklabels()
    return {round(place, 6): label.get_text() for place, label in zip(axis.get_majorticklocs(), labels, strict=False)}


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _points(pairs: list[tuple[Any, Any]]) -> list[list[Any]]:
    return [[_value(x), _value(y)] for x, y in pairs[: limits.MAX_POINTS]]


def _value(value: Any) -> Any:
    if hasattr(value, "dtype") and value.dtype.kind in "Mm":  # tolist() would make nanoseconds of these
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value
