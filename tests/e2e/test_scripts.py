# ruff: noqa: E501 - cells read best on one line
"""Scripts as models write them, and the rich results that come of them, through SDK and daemon from a real sandbox."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon

SOON_SECONDS = 12.0
"""For what is told at once and not waited for. Far below the time limits and retries that it must not use up."""
PLT = "import matplotlib.pyplot as plt\n"


@pytest.fixture(scope="module")
def context(sandbox: cellbox.Sandbox) -> Iterator[cellbox.CodeContext]:
    """A kernel for every test of the module: each leaves it fit for the next."""
    with sandbox.create_code_context() as shared:
        yield shared


def run(context: cellbox.CodeContext, code: str) -> cellbox.Execution:
    """Run a cell that must end well."""
    done = context.run_code(code, timeout_seconds=60)
    assert (done.outcome, done.error) == ("completed", None)
    return done


# ------------------------------------------------------------------------------------------------ scripts, unchanged


@pytest.mark.parametrize(
    "code",
    [
        "input('name? ')",
        "import getpass\ngetpass.getpass()",
        "import pdb\npdb.set_trace()\nx = 1",
        "%debug",
        "import sys\nsys.stdin.read()",
    ],
)
def test_nobody_is_waited_for(context: cellbox.CodeContext, code: str) -> None:
    started = time.monotonic()
    done = context.run_code(code, timeout_seconds=60)
    assert time.monotonic() - started < SOON_SECONDS
    assert (done.outcome, done.state_kept) == ("completed", True)
    assert done.error is not None
    assert "nobody to type" in done.hint


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(f())",
        "asyncio.get_event_loop().run_until_complete(f())",
        "await f()",
        "await asyncio.sleep(0)\nasyncio.run(f())",
        "with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner: value = runner.run(f())\nvalue",
    ],
)
def test_every_way_into_asyncio(context: cellbox.CodeContext, code: str) -> None:
    assert run(context, f"import asyncio\nasync def f(): return 41 + 1\n{code}").text == "42"


def test_children_never_act_as_the_kernel(context: cellbox.CodeContext) -> None:
    forked = run(context, "import os\nkept = 7\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')")
    assert (forked.stdout, forked.stderr) == ("child\nparent\n", "")
    pools = (
        "import multiprocessing as mp, warnings\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def square(x): return x * x\n"
        "with warnings.catch_warnings():\n"
        "    warnings.simplefilter('error')  # Python warns of forks beside threads, and there is none but the user's\n"
        "    print('before', end=' ', flush=False)\n"
        "    with mp.Pool(4) as pool: first = pool.map(square, range(8))\n"
    )
    assert run(context, pools + "first").text == "[0, 1, 4, 9, 16, 25, 36, 49]"
    assert run(
        context, "with ProcessPoolExecutor(2) as pool: second = list(pool.map(square, [3]))\nsecond, kept"
    ).text == ("([9], 7)")
    late = "import subprocess\np = subprocess.Popen('read x; echo late', shell=True, stdin=subprocess.PIPE)"
    assert run(context, late).stdout == ""
    assert run(context, "p.communicate(b'go')\np.returncode").stdout == "late\n"
    assert run(context, "import multiprocessing\nmultiprocessing.active_children(), kept").text == "([], 7)"


def test_installing_without_a_network_is_told_at_once(context: cellbox.CodeContext) -> None:
    for code in ("%pip install nosuch-package-of-ours", "!pip install nosuch-package-of-ours"):
        started = time.monotonic()
        done = context.run_code(code, timeout_seconds=60)
        assert time.monotonic() - started < SOON_SECONDS
        assert (done.outcome, "has no network" in done.hint) == ("completed", True)
    missing = context.run_code("import nosuch_module_of_ours")
    assert "%pip install nosuch_module_of_ours" in missing.hint


def test_what_pip_installs_is_this_kernels(context: cellbox.CodeContext) -> None:
    make = (
        "import importlib, zipfile\n"
        "def make_wheel(version):\n"
        "    info = f'ours-{version}.dist-info'\n"
        "    with zipfile.ZipFile(f'/tmp/ours-{version}-py3-none-any.whl', 'w') as made:\n"
        "        made.writestr('ours.py', f'version = {version!r}')\n"
        "        made.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: ours\\nVersion: {version}\\n')\n"
        "        made.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        made.writestr(f'{info}/RECORD', '')\n"
        "make_wheel('1.0'); make_wheel('2.0')"
    )
    run(context, make)
    run(context, "%pip install -q --no-index /tmp/ours-1.0-py3-none-any.whl")
    assert run(context, "import ours\nours.version").text == "'1.0'"
    run(context, "!pip install -q --no-index /tmp/ours-2.0-py3-none-any.whl")
    assert run(context, "importlib.reload(ours).version").text == "'2.0'"


# --------------------------------------------------------------------------------------------------- charts and tables

SCRIPTS = "销售额 売上 매출 مبيعات हिन्दी −5 😀"


def test_every_script_has_its_glyphs(context: cellbox.CodeContext) -> None:
    code = f"import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('error')\n    plt.title('{SCRIPTS}')\n    plt.show()"
    done = run(context, PLT + code)
    assert ([bool(one.png) for one in done.results], done.stderr) == ([True], "")


def test_a_font_installed_meanwhile_is_used(context: cellbox.CodeContext) -> None:
    install = (
        "import os\nfrom fontTools.ttLib import TTFont\n"
        "font = TTFont(plt.matplotlib.font_manager.findfont('DejaVu Sans'))\n"
        "for record in font['name'].names:\n"
        "    if record.nameID in (1, 4, 16): record.string = 'Cellbox Test'\n"
        "os.makedirs('/usr/local/share/fonts/ours', exist_ok=True)\n"
        "font.save('/usr/local/share/fonts/ours/ours.ttf')"
    )
    run(context, PLT + install)
    use = "plt.rcParams['font.family'] = 'Cellbox Test'\nplt.title('x')\nplt.show()\nplt.rcdefaults()"
    run(context, "plt.plot([1])\nplt.show()")
    done = run(context, PLT + use)
    assert ([bool(one.png) for one in done.results], done.stdout, done.stderr) == ([True], "", "")
    assert "ours.ttf" in (run(context, "plt.matplotlib.font_manager.findfont('Cellbox Test')").text or "")


FIGURES = [
    ("import pandas as pd\npd.DataFrame({'a': [1, 2]}).plot(kind='bar')", ["figure"]),
    ("plt.plot([1, 2]); plt.show()", ["figure"]),
    ("plt.plot([1, 2]); plt.savefig('/tmp/x.png')", []),
    ("plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2]);", ["figure", "figure"]),
    ("fig, ax = plt.subplots(); ax.plot([1])\nfig", ["result"]),
    ("import seaborn as sns\nsns.barplot(x=['a', 'b'], y=[1, 2])", ["figure"]),
]


@pytest.mark.parametrize(("code", "sources"), FIGURES)
def test_a_picture_comes_once_and_without_noise(context: cellbox.CodeContext, code: str, sources: list[str]) -> None:
    done = run(context, PLT + code)
    assert [one.source for one in done.results] == sources
    for one in done.results:
        assert base64.b64decode(one.png or "").startswith(b"\x89PNG")
        assert "Axes(" not in (one.text or "")


CHARTS = [
    ("plt.bar(['A', 'B'], [1, 2])", "bar", "linear"),
    ("plt.pie([1, 3], labels=['a', 'b'])", "pie", "linear"),
    ("plt.loglog([1, 10], [1, 100])", "line", "log"),
    ("import datetime as d\nplt.plot([d.datetime(2024, 1, 1), d.datetime(2024, 1, 2)], [1, 2])", "line", "linear"),
    ("plt.boxplot([[1, 2, 3], [4, 5, 6]])", "box", "linear"),
]


@pytest.mark.parametrize(("code", "kind", "scale"), CHARTS)
def test_charts_are_data_too(context: cellbox.CodeContext, code: str, kind: str, scale: str) -> None:
    (result,) = run(context, PLT + code).results
    assert result.png
    assert result.chart is not None
    assert (result.chart["type"], result.chart["x_scale"]) == (kind, scale)
    assert result.chart["series"]


def test_a_chart_is_none_rather_than_wrong(context: cellbox.CodeContext) -> None:
    assert run(context, PLT + "plt.figure(); plt.show()").results == []
    (picture,) = run(context, PLT + "plt.imshow([[1, 2], [3, 4]])").results
    assert (bool(picture.png), picture.chart) == (True, None)


def test_plotly_is_small_whole_and_needs_no_network(context: cellbox.CodeContext) -> None:
    done = run(context, "import plotly.express as px\nfig = px.bar(x=[1, 2], y=[3, 4])\nfig.show()\nfig")
    assert [(one.source, one.is_main) for one in done.results] == [("display", False), ("result", True)]
    for one in done.results:
        assert one.plotly["data"][0]["type"] == "bar"
        assert base64.b64decode(one.png or "").startswith(b"\x89PNG")
        html = one.html or ""
        assert html.lstrip().lower().startswith("<!doctype html>")
        assert html.rstrip().endswith("</html>")
        assert len(html) < 50_000


# --------------------------------------------------------------------------------------------- what is far too much


def test_huge_results_are_cut_and_counted(context: cellbox.CodeContext) -> None:
    wide = "import pandas as pd\ndf = pd.DataFrame({'text': ['x' * 400] * 30_000})\nprint(df.to_string())"
    printed = run(context, wide)
    assert printed.value.stdout_dropped_bytes > 0
    assert f"{printed.value.stdout_dropped_bytes} bytes cut here" in printed.stdout
    table = run(context, "with pd.option_context('display.max_rows', None): display(df.assign(text=0))").results[0]
    assert "30000 rows" in (table.html or "")
    assert len(table.html or "") < 2_000_000
    assert "more characters left out" in (run(context, "'x' * 200_000_000").text or "")
    many = run(context, "for i in range(10_000): display(i)")
    assert (len(many.results), many.value.dropped_results) == (1000, 9000)
    image = run(context, "from IPython.display import Image\nImage(data=b'\\x89PNG' + bytes(50_000_000), format='png')")
    assert image.results[0].omitted["image/png"] > 50_000_000
    assert run(context, "del df\n1").text == "1"


# -------------------------------------------------------------------------------------------------------- tracebacks

TRACEBACKS = [
    ("def deep(a):\n    return a / 0  # here\ndeep(1)", "ZeroDivisionError", "return a / 0  # here"),
    ("earlier(1)", "ZeroDivisionError", "return a / 0  # in the earlier cell"),
    ("x = = 1", "SyntaxError", "x = = 1"),
    ("try:\n    1 / 0\nexcept Exception as cause:\n    raise KeyError('k') from cause", "KeyError", "direct cause"),
    ("raise ValueError('\\x1b[31mred\\x1b[0m')", "ValueError", "ValueError: red"),
    ("raise ValueError('m' * 1_000_000)", "ValueError", "characters left out"),
    ("raise ExceptionGroup('many', [ValueError(1), TypeError(2)])", "ExceptionGroup", "TypeError: 2"),
]


@pytest.mark.parametrize(("code", "name", "part"), TRACEBACKS)
def test_a_traceback_is_what_a_model_can_use(context: cellbox.CodeContext, code: str, name: str, part: str) -> None:
    run(context, "def earlier(a):\n    return a / 0  # in the earlier cell")
    done = context.run_code(code)
    assert done.error_info is not None
    assert (done.error_info.name, done.outcome, done.state_kept) == (name, "completed", True)
    assert part in done.error_info.traceback
    assert "\x1b" not in done.error_info.traceback
    assert len(done.error_info.traceback) < 40_000


# ---------------------------------------------------------------------------------------- objects, images, callers


def test_objects_cross_as_text_and_nothing_is_unpickled(context: cellbox.CodeContext) -> None:
    code = (
        "import os, pickle\n"
        "class Trap:\n"
        "    def __reduce__(self): return (os.system, ('touch /tmp/sprung',))\n"
        "    def _repr_mimebundle_(self, **_):\n"
        "        return {'text/plain': 'trap', 'application/x-pickle': pickle.dumps(self), 'application/json': {'a': 1}}\n"
        "Trap()"
    )
    (result,) = run(context, code).results
    assert (result.text, result.json) == ("trap", {"a": 1})
    assert all(isinstance(content, str) for content in result.data.values())


def test_a_template_without_ipython_says_what_is_missing(new_sandbox: Callable[..., cellbox.Sandbox]) -> None:
    plain = new_sandbox(template="base")
    with pytest.raises(errors.UnknownLanguageError, match="IPython"):
        plain.run_code("1 + 1")
    assert plain.exec("echo fine").stdout == "fine\n"


def test_a_create_whose_caller_died_is_reaped(daemon: Daemon, client: cellbox.Client) -> None:
    address = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    headers = {"Authorization": f"Bearer {daemon.admin_key}", "Content-Type": "application/json"}
    body = {"template": "base", "ttl_seconds": 3, "metadata": {"caller": "died"}}
    connection.request("POST", "/v1/sandboxes", json.dumps(body), headers)
    made = json.loads(connection.getresponse().read())["id"]
    connection.close()
    assert made in [box.id for box in client.sandboxes.list()]
    connection.request("POST", "/v1/sandboxes", json.dumps(body), headers)
    connection.close()  # this one before the answer: what it asked for is undone, or has its time like the other
    deadline = time.monotonic() + 60
    while any(box.metadata.get("caller") == "died" for box in client.sandboxes.list()):
        assert time.monotonic() < deadline, "nobody reaped it"
        time.sleep(0.1)
    with cellbox.Sandbox.create("base", ttl_seconds=60, client=client) as after:
        assert after.exec("echo on").stdout == "on\n"
