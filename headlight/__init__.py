"""The command `headlight`: start `python -m configs.commands` where it finds Headlight's packages.

Their names are common words (data, model, train). So a wheel has them in headlight/rooms, where
they cannot collide with yours. In a clone they are beside this folder.
"""

import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).resolve().parent
    rooms = here / "rooms"
    if not rooms.is_dir():
        rooms = here.parent
    # Headlight's packages come before a `data` of yours, and the working folder before what is
    # installed, as with `python -m`: a config may name a hook of yours. Child processes inherit it.
    paths = [str(rooms), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYTHONSAFEPATH"] = "1"
    command = [sys.executable, "-m", "configs.commands", *sys.argv[1:]]
    if os.name == "nt":  # there execv does not wait, and the shell would go on
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)
