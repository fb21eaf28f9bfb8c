"""`%config InlineBackend.…`, which notebooks use to choose the format of figures."""

from __future__ import annotations

from traitlets import Any, Bool, Dict, Instance, Set, Unicode, observe
from traitlets.config import Configurable


class InlineBackend(Configurable):
    """Understands the settings of IPython's inline backend that mean something here."""

    figure_formats = Set({"png"}, help="Formats of figures: png, retina, jpeg, svg.").tag(config=True)
    figure_format = Unicode("png", help="One format.").tag(config=True)
    print_figure_kwargs = Dict(help="Accepted, without effect.").tag(config=True)
    rc = Dict(help="Accepted, without effect.").tag(config=True)
    close_figures = Bool(True, help="Accepted, without effect.").tag(config=True)
    shell = Instance("IPython.core.interactiveshell.InteractiveShellABC", allow_none=True)
    extra = Any()

    @observe("figure_format")
    def _figure_format_changed(self, change):
        self.figure_formats = {change["new"]}

    @observe("figure_formats")
    def _figure_formats_changed(self, change):
        if hasattr(self.shell, "figures"):
            self.shell.figures.formats = set(change["new"])
