# ruff: noqa: ARG002 - signatures of IPython
"""IPython's shell, made to live in a kernel: built once in the zygote, connected to a way out in each kernel.

It runs cells, and reports their values, displays and errors to us instead of printing them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import observe
from traitlets.config import Config

from cellbox.guest.kernel import errors, hints, limits, tables
from cellbox.guest.kernel.display import PLAIN, Displays
from cellbox.guest.kernel.figures import Figures
from cellbox.guest.kernel.inline import InlineBackend
from cellbox.guest.kernel.loop import CellLoop
from cellbox.guest.kernel.plotly import Plotly
from cellbox.guest.kernel.streams import Outbox

_KEPT_RESULTS = 30  # `Out[n]`; each keeps its value alive


class _Profile(ProfileDir):
    """No profile: the zygote starts where nothing can be written, and no setting of a user's is to matter."""

    @observe("location")
    def _location_changed(self, change):
        pass


class _Compiler(CachingCompiler):
    def get_code_name(self, raw_code, transformed_code, number):
        return f"{errors.CELL_PREFIX}{number}>"

    def format_code_name(self, name):
        return None


class _Formatter(DisplayFormatter):
    """Knows whether a repr is being made, since a failure of that is not the cell's."""

    depth = 0

    def format(self, obj, include=None, exclude=None):
        self.depth += 1
        try:
            data, metadata = super().format(obj, include=include, exclude=exclude)
        finally:
            self.depth -= 1
        if PLAIN not in data and (data or not hasattr(obj, "_ipython_display_")):
            data[PLAIN] = f"<{type(obj).__module__}.{type(obj).__qualname__} object, its repr failed>"
        return data, metadata


class _Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, *_args, **_options):
        self.shell.displays.send(dict(data))

    def clear_output(self, wait=False):
        """Nothing: what was sent can't be taken back, and the stream must keep its bytes."""


class _DisplayHook(DisplayHook):
    def __call__(self, result=None):
        self.check_for_underscore()
        if result is None or self.quiet():
            return
        self.shell.send_result(result)
        self.update_user_ns(result)
        self.fill_exec_result(result)

    def cull_cache(self):
        """Forget the oldest half of `Out`, without the warning that IPython prints."""
        kept = self.shell.user_ns["_oh"]
        for number in sorted(kept)[: len(kept) // 2]:
            self.shell.user_ns.pop(f"_{number}", None)
            del kept[number]


class Shell(InteractiveShell):
    """The shell of a kernel. `connect` before the first cell."""

    compiler_class = _Compiler

    def __init__(self) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryAccessor.enabled = False
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.cache_size = _KEPT_RESULTS
        config.InteractiveShell.autoawait = True
        self._failed_commands: list[str] = []
        super().__init__(
            config=config,
            profile_dir=_Profile(location="/nonexistent"),
            displayhook_class=_DisplayHook,
            display_pub_class=_Publisher,
        )
        self.configurables.append(InlineBackend(shell=self))
        self.cell_loop = CellLoop()
        self.loop_runner = self.cell_loop.run

    def connect(self, outbox: Outbox) -> None:
        """Give the shell its way out, and set up the libraries that draw."""
        self.outbox = outbox
        self.displays = Displays(outbox)
        self.figures = Figures(self.displays)
        self.plotly = Plotly(self.displays)
        formatter = self.display_formatter
        for kind in (str, bytes, bytearray):
            formatter.formatters[PLAIN].for_type(kind, _pretty_string)
        plain = formatter.formatters[PLAIN]
        for frames, columns in (("pandas", "pandas"), ("pandas.core.frame", "pandas.core.series")):  # since 3, before
            plain.for_type_by_name(frames, "DataFrame", tables.plain_frame)
            plain.for_type_by_name(columns, "Series", tables.plain_series)
            formatter.formatters["text/html"].for_type_by_name(frames, "DataFrame", tables.html)
        bundles = formatter.mimebundle_formatter
        bundles.for_type_by_name("matplotlib.figure", "Figure", self.figures.bundle)
        bundles.for_type_by_name("plotly.basedatatypes", "BaseFigure", self.plotly.bundle)
        formatter.ipython_display_formatter.for_type_by_name("plotly.basedatatypes", "BaseFigure", _not_by_itself)
        self.set_hook("show_in_pager", self._page, 99)
        self.register_magic_function(self._pip, "line", "pip")

    def warm_up(self) -> None:
        """Go once through what every cell goes through: the first real one is then as quick as the next."""
        self.run_cell("0", store_history=False, silent=True)
        self.display_formatter.format(0)

    def rehearse(self, run: Callable[[], object]) -> None:
        """Let `run` run a cell, and be as before it, numbers and history included."""
        names, hidden = dict(self.user_ns), dict(self.user_ns_hidden)
        history, hook = self.history_manager, self.displayhook
        lists = [(entries, list(entries)) for entries in (history.input_hist_parsed, history.input_hist_raw)]
        run()
        for entries, before in lists:
            entries[:] = before
        history.output_hist.clear()
        for owner, remembered in ((history, ("_i", "_ii", "_iii", "_i00")), (hook, ("_", "__", "___"))):
            for name in remembered:
                setattr(owner, name, "")
        for namespace, before in ((self.user_ns, names), (self.user_ns_hidden, hidden)):
            namespace.clear()
            namespace.update(before)
        self.execution_count = 1

    def run(self, code: str) -> dict[str, Any]:
        """Run a cell and send all that comes of it. Returns the fields of its `CellDone`."""
        self._failure: BaseException | None = None
        self._is_noise = False
        self._failed_commands: list[str] = []
        self.displays.begin_cell()
        self.figures.begin_cell()
        self.cell_loop.begin_cell()
        result = self.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec or self._failure
        try:
            self.figures.harvest(is_main=self._is_noise)
        finally:
            self.plotly.end_cell()
        return {"execution_count": self.execution_count - 1, **self.outcome(error)}

    def outcome(self, error: BaseException | None) -> dict[str, Any]:
        """Return the fields of a `CellDone` that say how the code ended."""
        fields: dict[str, Any] = {"exit": 0, "error": None, "hint": ""}
        if isinstance(error, SystemExit):
            fields["exit"] = _exit_code(error)
        elif error is not None:
            fields |= {"exit": 1, "error": errors.describe(error), "hint": hints.for_error(error)}
        if not fields["hint"]:
            fields["hint"] = hints.for_commands(self._failed_commands)
        fields["dropped_displays"] = self.displays.dropped
        fields["background_threads"] = sum(map(self._is_users, threading.enumerate()))
        return fields

    def _is_users(self, thread: threading.Thread) -> bool:
        if thread in (threading.main_thread(), self.outbox.ticker):
            return False
        magics = self.magics_manager.registry.get("ScriptMagics")
        target = getattr(thread, "_target", None)  # %%bash leaves a thread that runs its event loop
        return target is None or target != getattr(getattr(magics, "event_loop", None), "run_forever", 0)

    def _page(self, _shell: Any, text: Any, *_args: Any, **_options: Any) -> None:
        self.displays.send(_pager_bundle(text))

    def send_result(self, value: Any) -> None:
        """Send the value of a cell's last expression."""
        if self.figures.is_noise(value):
            self._is_noise = True
            return
        if self.figures.has_shown(value):
            data = {PLAIN: repr(value)}
        else:
            data, _ = self.display_formatter.format(value)
        if data:
            self.displays.send(data, source="result", is_main=True, now=False)

    # ------------------------------------------------------------ what IPython would print, ask or start by itself

    def showtraceback(self, exc_tuple=None, *_args, **_options):
        error = exc_tuple[1] if exc_tuple and isinstance(exc_tuple[1], BaseException) else sys.exc_info()[1]
        if error is None:
            return
        if self.display_formatter.depth:
            self.displays.broken_repr(error)
        elif self._failure is None:
            self._failure = error
        sys.last_exc = sys.last_value = error
        sys.last_type, sys.last_traceback = type(error), error.__traceback__

    def showsyntaxerror(self, *_args, **_options):
        self.showtraceback()

    def show_usage_error(self, exc):
        self.showtraceback((type(exc), exc, exc.__traceback__))

    def _format_exception_for_storage(self, *_args, **_options):
        return {}

    @contextlib.contextmanager
    def _tee(self, channel):
        yield  # IPython would keep a copy of everything printed

    def debugger(self, force=False):
        raise hints.StdinNotAvailableError(f"debugger: {hints.NO_STDIN}")

    def ask_exit(self):
        raise SystemExit(0)

    def enable_gui(self, gui=None):
        pass

    def enable_matplotlib(self, gui=None):
        return gui or "inline", "agg"

    def init_display_formatter(self):
        self.display_formatter = _Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_user_ns(self):
        super().init_user_ns()
        for name in ("exit", "quit"):
            self.user_ns[name] = self.user_ns_hidden[name] = _leave

    def init_ipython_dir(self, ipython_dir):
        """None: IPython would make one, where nothing can be written yet."""

    def init_virtualenv(self):
        """The interpreter is the template's; the environment is not known yet."""

    def _pip(self, line):
        """Run pip for this interpreter. What it installs can be imported at once, so nothing is said of a restart."""
        self.system(f"{shlex.quote(sys.executable)} -m pip {line}")

    def system(self, cmd):
        """Run `!cmd` with the kernel's own standard output, so that it shows as it comes and in order."""
        command = self.var_expand(cmd, depth=1)
        self.outbox.flush()
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        code = subprocess.call([shell, "-c", command], stdin=subprocess.DEVNULL)
        if code:
            self._failed_commands.append(command[:1000])
        self.user_ns["_exit_code"] = code if code >= 0 else 128 - code
        importlib.invalidate_caches()

    system_raw = system_piped = system


def _leave(code: Any = None) -> None:
    """End the cell. The kernel and its variables stay."""
    raise SystemExit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return int(error.code)
    sys.stderr.write(f"{error.code}\n")
    return 1


def _not_by_itself(_value: Any) -> None:
    raise NotImplementedError  # tells IPython to go on with the representations


def _pretty_string(value: Any, printer: Any, _cycle: bool) -> None:
    printer.text(limits.short_string(value) or repr(value))


def _pager_bundle(text: Any) -> dict[str, Any]:
    return dict(text) if isinstance(text, dict) else {PLAIN: str(text)}
