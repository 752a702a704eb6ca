"""How is the viewer a part of another page? The same parts, as one JavaScript module, and the numbers without maps.

viewer.html carries everything in itself. A page that a server sends asks for it piece by piece, and for new looks while
the run trains: `module` exports every name of the scripts, `fragment` is what they draw into.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from eval.attention.snapshots import Snapshot
from eval.attention.viewer.page import PARTS, SCRIPTS, described

NAMED = re.compile(r"^(?:async )?(?:const|let|function|class) (\w+)", re.MULTILINE)
BEGIN = "begin"  # of viewer.html alone: it reads the data that lies in the page


def module() -> str:
    """All scripts as one module, as an import needs it: each of their names is exported."""
    parts = [(PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS if name != BEGIN]
    code = "\n".join(parts)
    return f"{code}\nexport {{ {', '.join(NAMED.findall(code))} }};\n"


def style() -> str:
    """Its style sheet."""
    return (PARTS / "style.css").read_text(encoding="utf-8")


def fragment(title: str = "") -> str:
    """What `module` draws into, as HTML: everything between <body> and the data."""
    whole = (PARTS / "page.html").read_text(encoding="utf-8")
    body = whole.partition("<body>\n")[2].partition('<script type="text/plain"')[0]
    return body.replace("@@TITLE@@", title)


def told(name: str, snapshots: Sequence[Snapshot], experts: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything but the maps, ready for JSON: as in viewer.html, but each step names its map of a probe "STEP/PROBE".

    The weights of the snapshots are not looked at; they may have been left out. Raises InputError without a look.
    """
    return described(name, list(snapshots), experts)
