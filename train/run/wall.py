"""Report a run's birth, the step at which its induction head forms, to the wall of a class.

A run reports only if `tracking.wall` names a wall (`python -m serve --class`). Training never waits
for a report, and continues without the wall.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from queue import SimpleQueue
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from configs.text import escape
from eval.attention.history import PhaseChange

# In seconds. A wall in the same room answers at once; the end of a run waits so long at most.
PATIENCE = 5.0


def parse_wall(wall: str) -> tuple[str, str]:
    """Return name ("" for none) and address of `NAME@ADDRESS:PORT`. Raises ValueError."""
    name, _, address = wall.removeprefix("http://").rstrip("/").rpartition("@")
    try:
        url = urlsplit(f"http://{address}")
        is_complete = bool(url.hostname and url.port) and url.netloc == address
    except ValueError:  # the port is not a number
        is_complete = False
    if not is_complete or len(name) > 24 or not (name + address).isprintable():
        raise ValueError(
            "give an address with a port, such as 192.168.1.20:8000, or a name of at most 24 "
            "letters before it, such as Mia@192.168.1.20:8000"
        )
    return name, address


class Wall:
    """The reports of one run.

    wall:  as in `parse_wall`
    about: id, config (the run's name) and seed
    say:   prints a line
    """

    def __init__(self, wall: str, about: dict[str, Any], say: Callable[[str], None]) -> None:
        name, self.address = parse_wall(wall)
        self.about = about | {"name": name}
        self.say = say
        self.warned = False
        # a proxy would look for the address outside of the room
        self.opener = build_opener(ProxyHandler({}))
        # one thread, so that reports arrive in order
        self.reports: SimpleQueue[bytes | None] = SimpleQueue()
        # a daemon, so that a wall that hangs does not keep the run alive
        self.thread = Thread(target=self._send_all, daemon=True)
        self.thread.start()
        say(
            f"the wall {self.address} gets: step and head of the birth, copy gain, name and seed "
            f"of the run, your name ({name or 'none'})"
        )

    def report(self, birth: PhaseChange | None, copy_gain: float | None) -> None:
        """Send the birth as known now. The newest report counts. None: no head formed."""
        known = birth._asdict() if birth else {}
        fields = {name: known.get(name) for name in ("step", "layer", "head")}
        self.reports.put(json.dumps(self.about | fields | {"copy_gain": copy_gain}).encode())

    def _send_all(self) -> None:
        for body in iter(self.reports.get, None):
            problem = self._send(body)
            if problem and not self.warned:
                self.warned = True
                self.say(
                    f"warning: the wall {self.address} does not take the birth: "
                    f"{escape(problem)[:200]}; training continues"
                )

    def _send(self, body: bytes) -> str:
        """Return the problem, or ""."""
        headers = {"Content-Type": "application/json"}
        request = Request(f"http://{self.address}/births", body, headers)
        try:
            self.opener.open(request, timeout=PATIENCE).close()
        except HTTPError as error:
            with suppress(ValueError, KeyError, TypeError):
                return str(json.loads(error.read(2000))["error"]["message"])
            return f"it answered {error.code}"
        except (OSError, HTTPException) as error:
            return str(getattr(error, "reason", error))
        return ""

    def finish(self) -> None:
        """Wait for the last report."""
        self.reports.put(None)
        self.thread.join(PATIENCE)
