# ruff: noqa: E501 - cells read best on one line
"""Figures: each once, in order, and never lost."""

from __future__ import annotations

import base64
import json

import pytest

PLT = "import matplotlib.pyplot as plt\n"
FIGURES = [
    # name, code, (source, is_main) of each display
    ("no show", "plt.plot([1, 2]);", [("figure", False)]),
    ("show", "plt.plot([1, 2])\nplt.show()", [("figure", False)]),
    ("show returns", "plt.plot([1, 2])\nplt.show()\nprint('x')", [("figure", False)]),
    ("artists are no result", "plt.plot([1, 2])", [("figure", True)]),
    ("axes are no result", "import pandas as pd\npd.DataFrame({'a': [1, 2]}).plot(kind='bar')", [("figure", True)]),
    ("hist", "plt.hist([1, 2, 2])", [("figure", True)]),
    ("subplots", "fig, axs = plt.subplots(1, 2); axs[0].plot([1]); axs", [("figure", True)]),
    ("figure as value", "fig, ax = plt.subplots(); ax.plot([1])\nfig", [("result", True)]),
    ("shown figure as value", "fig, ax = plt.subplots(); ax.plot([1])\nplt.show()\nfig", [("figure", False), ("result", True)]),
    ("displayed", "fig, ax = plt.subplots(); ax.plot([1])\ndisplay(fig)", [("display", False)]),
    ("two", "plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2]);", [("figure", False)] * 2),
    ("after the value", "plt.plot([1])\n42", [("result", True), ("figure", False)]),
    ("saved only", "plt.plot([1]); plt.savefig('/tmp/cellbox-test.png')", []),
    ("saved and shown", "plt.plot([1]); plt.savefig('/tmp/cellbox-test.png'); plt.show()", [("figure", False)]),
    ("closed", "plt.plot([1]); plt.close()", []),
    ("empty", "plt.figure();", []),
    ("Agg by hand", "import matplotlib; matplotlib.use('Agg')\nplt.plot([1]); plt.show()", [("figure", False)]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), [case[1:] for case in FIGURES], ids=[case[0] for case in FIGURES])
def test_every_figure_comes_exactly_once(shared, code, expected):
    outcome = shared.run(PLT + code)
    assert outcome.answer["error"] is None, outcome.error
    assert [(display["source"], display["is_main"]) for display in outcome.displays] == expected
    for display in outcome.displays:
        if display["source"] == "figure":
            assert base64.b64decode(display["bundle"]["image/png"]).startswith(b"\x89PNG")
    assert outcome.stderr == ""


def test_figure_and_output_keep_their_order(shared):
    outcome = shared.run(PLT + "print(1)\nplt.plot([1]); plt.show()\nprint(2)")
    assert [kind for kind, _ in outcome.events] == ["stdout", "display", "stdout"]


CHARTS = [
    ("plt.plot([1, 2], [3, 4], label='a'); plt.title('t'); plt.xlabel('x')", "line", [[1, 3], [2, 4]]),
    ("plt.bar(['A', 'B'], [1, 2])", "bar", [["A", 1], ["B", 2]]),
    ("plt.barh(['A', 'B'], [1, 2])", "bar", [["A", 1], ["B", 2]]),
    ("plt.scatter([1, 2], [3, 4])", "scatter", [[1, 3], [2, 4]]),
    ("plt.pie([1, 3], labels=['a', 'b'])", "pie", [["a", 0.25], ["b", 0.75]]),
    ("plt.hist([1, 1, 2], bins=2)", "histogram", [[1.25, 2], [1.75, 1]]),
    ("import datetime as d; plt.plot([d.date(2020, 1, 1)], [1])", "line", [["2020-01-01", 1]]),
]


@pytest.mark.parametrize(("code", "kind", "points"), CHARTS)
def test_common_charts_are_described(shared, code, kind, points):
    chart = json.loads(shared.run(PLT + code).displays[0]["chart"])
    assert chart["type"] == kind
    assert [[x, pytest.approx(y, abs=1e-3)] for x, y in points] == chart["series"][0]["points"]


def test_box_plots_are_described(shared):
    chart = json.loads(shared.run(PLT + "plt.boxplot([1, 2, 3, 100])").displays[0]["chart"])
    assert (chart["type"], chart["series"][0]["median"], chart["series"][0]["outliers"]) == ("box", 2.5, [100])


def test_what_is_no_common_chart_still_has_its_picture(shared):
    display = shared.run(PLT + "plt.imshow([[1, 2], [3, 4]]);").displays[0]
    assert display["chart"] == ""
    assert "image/png" in display["bundle"]


def test_the_format_of_figures_can_be_chosen(fresh):
    fresh.run("%config InlineBackend.figure_format = 'svg'")
    bundle = fresh.run(PLT + "plt.plot([1]);").displays[0]["bundle"]
    assert {"image/png", "image/svg+xml"} <= set(bundle)


def test_warnings_as_errors_do_not_lose_the_picture(fresh):
    fresh.run("import warnings; warnings.simplefilter('error')")
    outcome = fresh.run(PLT + "plt.plot([1]); plt.title('销售额 − \\U0010ffff'); plt.show()")
    assert "image/png" in outcome.displays[0]["bundle"]


def test_data_frames_have_text_and_html(shared):
    outcome = shared.run("import pandas as pd\npd.DataFrame({'a': [1]})")
    assert {"text/plain", "text/html"} <= set(outcome.displays[0]["bundle"])


def test_plotly_figures_come_once_and_small(fresh):
    assert not fresh.run("import plotly.express").answer["error"]
    outcome = fresh.run(
        "import plotly.graph_objects as go\nfig = go.Figure(go.Bar(x=[1, 2], y=[3, 4]))\nfig.show()\nfig", 50
    )
    shown, value = outcome.displays
    assert (shown["source"], value["source"], value["is_main"]) == ("display", "result", True)
    for display in (shown, value):
        assert json.loads(display["bundle"]["application/vnd.plotly.v1+json"])["data"][0]["type"] == "bar"
        assert len(display["bundle"]["text/html"]) < 20_000
    children = "import os; open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read()"
    assert fresh.run(children).text == "''"  # kaleido is gone
