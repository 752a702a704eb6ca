"""Watch your runs on one page, and talk to your models through OpenAI's API: `python -m serve runs/`

The page shows every run of the folder, also while it trains. Every run that has a checkpoint is a model. It listens on
this machine alone; for others, give --host and --api-key. docs/serving.md shows how to use it, and what protects it.
"""

from __future__ import annotations

import argparse
import ipaddress
import os

from configs.command import InputError, exit_on_bad_input, integer, number
from configs.files import run_path
from eval.load_model import add_device_option, add_quantise_option

KEY = "HEADLIGHT_API_KEY"  # of the environment, so that the key need not stand in the list of processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("runs", nargs="?", type=run_path, default="runs", help="a folder of runs (runs), one run, or a model directory")
    add("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1, this machine")
    add("--port", type=integer("--port", 1, 65535), default=8000, metavar="N", help="(8000)")
    add("--api-key", default=os.environ.get(KEY), help=f"clients must send it; default: ${KEY}, if it is set")
    add("--allow-origin", action="append", default=[], metavar="URL", help="a page of this origin may use the API")
    for option, least, most, default, meaning in (
        ("--max-running", 1, 4096, 64, "requests that are answered at once"),
        ("--max-waiting", 0, 10**6, 256, "requests that may wait; more get status 429"),
        ("--max-new-tokens", 1, 2**24, 2048, "tokens of an answer"),
    ):
        add(option, type=integer(option, least, most), default=default, metavar="N", help=f"{meaning} ({default})")
    add("--seconds", type=number("--seconds", 0.1), default=120.0, metavar="N", help="of an answer; then 503 (120)")
    add_quantise_option(parser)
    add_device_option(parser)
    args = parser.parse_args()
    try:
        is_local = args.host == "localhost" or ipaddress.ip_address(args.host).is_loopback
    except ValueError:  # a name
        is_local = False
    if not is_local and not args.api_key:
        raise InputError(f"--host {args.host}: others could use your models: give --api-key (or {KEY}) as well")
    if "*" in args.allow_origin:
        raise InputError("--allow-origin *: every web page could use your models: name the pages")

    print(f"looking for models in {args.runs} …", flush=True)  # the imports below take seconds
    from serve.app import LOCAL, create_app, make_server
    from serve.library import Library
    from serve.limits import Limits

    batching = {"max_running": args.max_running, "max_waiting": args.max_waiting}
    library = Library(args.runs, args.device, args.quantise, **batching)
    limits = Limits(seconds=args.seconds, max_new_tokens=args.max_new_tokens, api_key=args.api_key or None)
    app = create_app(library, limits, LOCAL if is_local else ["*"], args.allow_origin)
    place = f"[{args.host}]:{args.port}" if ":" in args.host else f"{args.host}:{args.port}"
    print(f"models: {', '.join(library.runs()) or 'none yet'}")
    print(f"the page: http://{place}/\nOpenAI's API: http://{place}/v1   (Ctrl-C ends it)", flush=True)
    try:
        make_server(app, args.host, args.port, args.seconds).run()
    except SystemExit:
        raise InputError(f"--port: {place} cannot be used: another program may listen there") from None


if __name__ == "__main__":
    exit_on_bad_input(main)
