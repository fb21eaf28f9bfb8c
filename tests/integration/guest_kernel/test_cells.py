# ruff: noqa: E501, ISC004 - cells read best on one line
"""Cells as people and models write them, and what must come of each."""

from __future__ import annotations

import base64
import json

import pytest

CELLS = [
    # name, code, the events in order
    ("value", "1+1", ["display:2"]),
    ("no value", "x = 1", []),
    ("semicolon", "1+1;", []),
    ("prints and value", "print(1); display({'a': 1}); print(2); 3",
     ["stdout:1\n", "display:{'a': 1}", "stdout:2\n", "display:3"]),
    ("stderr", "import sys; print('e', file=sys.stderr); print('o')", ["stderr:e\n", "stdout:o\n"]),
    ("no newline", "print('a', end=''); print('b', end='')", ["stdout:ab"]),
    ("bytes", "import sys; sys.stdout.buffer.write(b'raw\\r\\n\\n'); None", ["stdout:raw\r\n\n"]),
    ("surrogates", "print('\\udc80')", ["stdout:\\udc80\n"]),
    ("os.write", "import os; print('a'); os.write(1, b'b\\n'); print('c')", ["stdout:a\nb\nc\n"]),
    ("os.system", "import os; print('a', end=''); os.system('echo b'); print('c')", ["stdout:ab\nc\n"]),
    ("subprocess", "import subprocess; print('a', end='')\nsubprocess.run(['echo', 'b'])\nprint('c')",
     ["stdout:ab\nc\n"]),
    ("bang", "print('a')\n!echo b; echo e >&2\nprint('c')", ["stdout:a\nb\n", "stderr:e\n", "stdout:c\n"]),
    ("bang value", "x = !printf 'a\\nb\\n'\nlist(x)", ["display:['a', 'b']"]),
    ("bash magic", "%%bash\necho hi", ["stdout:hi\n"]),
    ("get_ipython", "get_ipython().__class__.__mro__[1].__name__", ["display:'InteractiveShell'"]),
    ("await", "import asyncio\nawait asyncio.sleep(0.01, 7)", ["display:7"]),
    ("asyncio.run", "import asyncio\nasync def f(): return 1\nasyncio.run(f())", ["display:1"]),
    ("asyncio.run under await", "import asyncio\nawait asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0, 5))", ["display:5"]),
    ("run_until_complete", "import asyncio\nasyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 2))",
     ["display:2"]),
    ("Runner", "import asyncio\nwith asyncio.Runner(loop_factory=asyncio.new_event_loop) as r: v = r.run(asyncio.sleep(0, 3))\nv",
     ["display:3"]),
    ("fork", "import os\npid = os.fork()\nif pid == 0: print('child')\nelse: os.waitpid(pid, 0); print('parent')",
     ["stdout:child\nparent\n"]),
    ("pool", "import multiprocessing as mp\ndef square(x): return x * x\nwith mp.Pool(2) as p: print(p.map(square, range(4)))",
     ["stdout:[0, 1, 4, 9]\n"]),
    ("executor", "from concurrent.futures import ProcessPoolExecutor\ndef half(x): return x / 2\n"
     "with ProcessPoolExecutor(2) as p: print(list(p.map(half, [4])))", ["stdout:[2.0]\n"]),
    ("threads", "import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()", ["stdout:t\n"]),
    ("matplotlib magic", "%matplotlib inline", []),
    ("main", "__name__", ["display:'__main__'"]),
    ("path", "import sys; any('cellbox' in entry or entry.endswith('/src') for entry in sys.path[:2])", ["display:False"]),
    ("closed stdout", "import sys; sys.stdout.close(); print('on')", ["stdout:on\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "events"), [case[1:] for case in CELLS], ids=[case[0] for case in CELLS])
def test_events_come_in_order(shared, code, events):
    outcome = shared.run(code)
    assert outcome.answer["outcome"] == "completed"
    assert outcome.answer["error"] is None, outcome.error["traceback"]
    assert outcome.order == events


ERRORS = [
    ("1/0", "ZeroDivisionError", '", line 1, in <module>\n    1/0\n'),
    ("def f():\n    x = 1\n    return x / 0\nf()", "ZeroDivisionError", "line 3, in f\n    return x / 0\n"),
    ("x = = 1", "SyntaxError", "x = = 1\n"),
    ("if True:\nx", "IndentationError", "line 2"),
    ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e", "KeyError", "direct cause"),
    ("raise ExceptionGroup('g', [ValueError(1), TypeError(2)])", "ExceptionGroup", "TypeError: 2"),
    ("raise ValueError('\\x1b[31mred\\x1b[0m')", "ValueError", "ValueError: red\n"),
    ("%nosuchmagic", "UsageError", "nosuchmagic"),
    ("def g(): return g()\ng()", "RecursionError", "repeated"),
    ("class E(Exception):\n    def __str__(self): raise TypeError\nraise E", "E", "E"),
    ("import asyncio\nawait asyncio.sleep(0)\nundefined", "NameError", "line 3"),
]


@pytest.mark.parametrize(("code", "name", "part"), ERRORS, ids=[case[1] + str(at) for at, case in enumerate(ERRORS)])
def test_errors_are_plain_text_with_the_cells_own_lines(shared, code, name, part):
    outcome = shared.run(code)
    assert (outcome.answer["outcome"], outcome.answer["exit"]) == ("completed", 1)
    assert outcome.error["name"] == name
    assert part in outcome.error["traceback"]
    assert "\x1b" not in outcome.error["traceback"]
    assert "IPython/core" not in outcome.error["traceback"]
    assert outcome.stderr == ""


def test_functions_of_earlier_cells_keep_their_source(fresh):
    fresh.run("def broken(a):\n    b = a\n    return b / 0  # here")
    assert "return b / 0  # here" in fresh.run("broken(1)").error["traceback"]


def test_huge_messages_are_cut_in_the_middle(shared):
    error = shared.run("raise ValueError('m' * 1_000_000 + 'end')").error
    assert len(error["traceback"]) < 40_000
    assert "characters left out" in error["traceback"]
    assert error["value"].endswith("end")


@pytest.mark.parametrize(
    "code",
    [
        "input('name? ')",
        "import getpass; getpass.getpass()",
        "import pdb; pdb.set_trace()\nx = 1",
        "breakpoint()\nx = 1",
        "%debug",
        "import sys; sys.stdin.read()",
        "import sys\nfor line in sys.stdin: pass",
    ],
)
def test_asking_for_input_fails_at_once_with_a_hint(shared, code):
    outcome = shared.run(code)
    assert outcome.error["name"] in ("StdinNotAvailableError", "BdbQuit")
    assert "nobody to type" in outcome.answer["hint"]
    assert outcome.seconds < 3
    assert shared.run("1").text == "1"


@pytest.mark.parametrize(
    ("code", "status"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("exit(2)", 2), ("sys.exit('no')", 1)]
)
def test_exit_ends_the_cell_and_not_the_kernel(shared, code, status):
    outcome = shared.run(f"import sys; kept = 5\n{code}\nprint('not reached')")
    assert (outcome.answer["outcome"], outcome.answer["exit"], outcome.answer["error"]) == ("completed", status, None)
    assert outcome.stdout == ""
    assert shared.run("kept").text == "5"


def test_missing_modules_come_with_a_hint(shared):
    assert "%pip install opencv-python-headless" in shared.run("import cv2").answer["hint"]
    assert "%pip install nosuch" in shared.run("import nosuch.deeper").answer["hint"]


def test_pip_acts_on_this_interpreter(shared):
    import_path = shared.run("import sys; sys.prefix").text.strip("'")
    for code in ("%pip --version", "!pip --version"):
        assert import_path in shared.run(code).stdout


def test_environment_of_a_cell_is_for_that_cell(fresh):
    fresh.run("import os; os.environ['A'] = '1'")
    assert fresh.run("os.environ['A'], os.environ['B']", env={"A": "2", "B": "3"}).text == "('2', '3')"
    assert fresh.run("os.environ['A'], os.environ.get('B')").text == "('1', None)"


REPRS = [
    ("class B:\n    def __repr__(self): raise ValueError('bad')\nB()", "<__main__.B object, its repr failed>"),
    ("class B:\n    def __repr__(self): return 5\nB()", "<__main__.B object, its repr failed>"),
    ("class B:\n    def _repr_html_(self): raise ValueError\n    def __repr__(self): return 'fine'\nB()", "fine"),
    ("10 ** 10000", "<builtins.int object, its repr failed>"),
]


@pytest.mark.parametrize(("code", "text"), REPRS)
def test_broken_reprs_never_lose_the_cell(shared, code, text):
    outcome = shared.run(code)
    assert outcome.answer["error"] is None
    assert outcome.text == text
    assert "Error" in outcome.stderr


def test_bundles_hold_only_strings_and_json_is_valid(shared):
    code = (
        "class R:\n"
        "    def _repr_mimebundle_(self, **kw):\n"
        "        import math, decimal, datetime\n"
        "        return {'application/json': {'a': math.nan, 'b': [math.inf, decimal.Decimal('1.5')],\n"
        "            'c': datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc), 3: 1}, 'image/png': b'\\x89PNG',\n"
        "            'text/latex': '$x$', 'text/plain': 'p', 'type': 'evil'}\n"
        "R()"
    )
    bundle = shared.run(code).displays[0]["bundle"]
    assert json.loads(bundle["application/json"]) == {
        "a": None,
        "b": [None, "1.5"],
        "c": "2020-01-02T00:00:00+00:00",
        "3": 1,
    }
    assert base64.b64decode(bundle["image/png"]) == b"\x89PNG"
    assert set(bundle) == {"application/json", "image/png", "text/latex", "text/plain"}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("HTML('<b>x</b>')", "text/html"),
        ("Markdown('# x')", "text/markdown"),
        ("Latex('$x$')", "text/latex"),
        ("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')", "image/svg+xml"),
        ("JSON({'a': 1})", "application/json"),
    ],
)
def test_ipython_display_objects(shared, code, name):
    displays = shared.run(f"from IPython.display import *\ndisplay({code})\n{code}").displays
    assert [(name in display["bundle"], display["is_main"]) for display in displays] == [(True, False), (True, True)]


def test_help_is_a_display(shared):
    assert "Return the number of items" in shared.run("len?").displays[0]["bundle"]["text/plain"]


def test_caps_have_markers_and_counts(shared):
    text = shared.run("'x' * 200_000_000").text
    assert len(text) < 70_000
    assert "199,935,464 more characters left out" in text
    outcome = shared.run("for i in range(3000): display(i)\n'end'")
    assert len(outcome.displays) == 1001
    assert outcome.answer["dropped_displays"] == 2000
    assert outcome.text == "'end'"
    big = shared.run("from IPython.display import Image\nImage(data=b'\\x89PNG' + bytes(50_000_000), format='png')")
    assert big.displays[0]["omitted"]["image/png"] > 50_000_000
    assert shared.run("1").text == "1"


def test_state_is_kept_and_not_shared(bench, fresh):
    fresh.run("mine = 1")
    other = bench.context()
    assert other.run("mine").error["name"] == "NameError"
    other.close()
    assert fresh.run("mine").text == "1"


def test_random_numbers_differ_between_kernels(bench):
    code = "import random, uuid\nrandom.random(), uuid.uuid4().hex"
    code += "\ntry:\n    import numpy\n    print(numpy.random.rand(), numpy.random.default_rng().random())\nexcept ImportError: print(0)"
    contexts = [bench.context() for _ in range(2)]
    first, second = (context.run(code + "\nrandom.random(), uuid.uuid4().hex") for context in contexts)
    assert first.text != second.text
    assert first.stdout == "0\n" or first.stdout != second.stdout
    for context in contexts:
        context.close()
