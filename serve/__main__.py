"""Watch your runs on a page, and talk to your models through OpenAI's API: `python -m serve runs/`

The page shows every run of the folder, also while it trains. Every run with a checkpoint is a
model. The server listens on this machine only; for others, give --host and --api-key.
docs/serving.md shows how to use it, and what protects it.

With --class it shows no run of yours, but the births that the runs of a class report, and listens
in the local network (docs/teaching.md).
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from configs.command import (
    InputError,
    add_number,
    command_parser,
    exit_on_bad_input,
)
from configs.files import run_path
from configs.language import translated
from eval.load_model import add_device_option, add_quantise_option

if TYPE_CHECKING:
    from uvicorn import Server

# Every user can read options in the list of processes, but not this variable.
KEY = "HEADLIGHT_API_KEY"


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("runs", nargs="?", default="runs", help="a folder of runs, a run, or a model")
    wall = "a wall for a class: guesses, and the births that its runs report"
    add("--class", action="store_true", dest="is_wall", help=wall)
    add("--host", help="address (127.0.0.1, this machine; with --class all networks)")
    add_number(parser, "--port", 8000, "where it listens", most=65535)
    add("--api-key", default=os.environ.get(KEY), help=f"clients must send it; default: ${KEY}")
    add("--allow-origin", action="append", default=[], metavar="URL", help="whose page may use it")
    add_number(parser, "--max-running", 64, "requests that are answered at once", most=4096)
    waiting = "requests that may wait; more get status 429"
    add_number(parser, "--max-waiting", 256, waiting, least=0, most=10**6)
    add_number(parser, "--max-new-tokens", 2048, "tokens of an answer", most=2**24)
    add_number(parser, "--seconds", 120.0, "of an answer; then 503", least=0.1, kind=float)
    add_quantise_option(parser)
    add_device_option(parser)
    args = parser.parse_args()
    if args.is_wall:
        serve_wall(args.host or "0.0.0.0", args.port)
        return
    args.runs = run_path(args.runs)
    args.host = args.host or "127.0.0.1"
    try:
        # 0.0.0.0 and a name may be reached from other machines, so they need a key
        is_local = args.host == "localhost" or ipaddress.ip_address(args.host).is_loopback
    except ValueError:
        # a name, which may lead anywhere
        is_local = False
    if not is_local and not args.api_key:
        remedy = f"give --api-key (or {KEY}) as well"
        raise InputError(f"--host {args.host}: others could use your models: {remedy}")
    if "*" in args.allow_origin:
        raise InputError("--allow-origin *: every web page could use your models: name the pages")

    # the imports below take seconds
    print(f"looking for models in {args.runs} …", flush=True)
    from serve.app import LOCAL, create_app, make_server
    from serve.library import Library
    from serve.limits import Limits

    batching = {"max_running": args.max_running, "max_waiting": args.max_waiting}
    library = Library(args.runs, args.device, args.quantise, **batching)
    # an empty key counts as none: it would let everybody in
    key = args.api_key or None
    limits = Limits(seconds=args.seconds, max_new_tokens=args.max_new_tokens, api_key=key)
    # any name of this machine is right in a network
    app = create_app(library, limits, LOCAL if is_local else ["*"], args.allow_origin)
    # an IPv6 address needs brackets, or its colons look like that of the port
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"models: {', '.join(library.runs()) or 'none yet'}")
    print(f"the page: http://{host}:{args.port}/")
    print(f"OpenAI's API: http://{host}:{args.port}/v1   (Ctrl-C ends it)", flush=True)
    run(make_server(app, args.host, args.port, args.seconds), host, args.port)


def serve_wall(host: str, port: int) -> None:
    """Serve the wall of a class until Ctrl-C."""
    from serve.app import make_server
    from serve.wall import create_wall, local_address

    address = f"{local_address() if host == '0.0.0.0' else host}:{port}"
    print(translated(f"your page, with the button that opens the wall: http://127.0.0.1:{port}/"))
    print(translated(f"the page of the class: http://{address}/"))
    print(translated(f"a run reports its birth with tracking.wall=NAME@{address}"))
    print(translated("All is in memory, and gone with Ctrl-C."), flush=True)
    with suppress(KeyboardInterrupt):  # nothing could be continued
        run(make_server(create_wall(address), host, port, 1), host, port)


def run(server: Server, host: str, port: int) -> None:
    try:
        server.run()
    except SystemExit:
        # uvicorn's answer to a port that is in use
        raise InputError(f"--port: {host}:{port} cannot be used: name another one") from None


if __name__ == "__main__":
    exit_on_bad_input(main)
