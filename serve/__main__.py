"""Watch your runs on a page, and talk to your models through OpenAI's API: `python -m serve runs/`

The page shows every run of the folder, also while it trains. Every run with a checkpoint is a
model. The server listens on this machine only; for others, give --host and --api-key.
docs/serving.md shows how to use it, and what protects it.
"""

import argparse
import ipaddress
import os

from configs.command import InputError, exit_on_bad_input, integer, number
from configs.files import run_path
from eval.load_model import add_device_option, add_quantise_option

# Every user can read options in the list of processes, but not this variable.
KEY = "HEADLIGHT_API_KEY"


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add = parser.add_argument
    add(
        "runs", nargs="?", type=run_path, default="runs", help="a folder of runs, a run, or a model"
    )
    add("--host", default="127.0.0.1", help="address (127.0.0.1, this machine)")
    add("--port", type=integer("--port", 1, 65535), default=8000, metavar="N", help="(8000)")
    add("--api-key", default=os.environ.get(KEY), help=f"clients must send it; default: ${KEY}")
    add("--allow-origin", action="append", default=[], metavar="URL", help="whose page may use it")
    for option, least, most, default, meaning in (
        ("--max-running", 1, 4096, 64, "requests that are answered at once"),
        ("--max-waiting", 0, 10**6, 256, "requests that may wait; more get status 429"),
        ("--max-new-tokens", 1, 2**24, 2048, "tokens of an answer"),
    ):
        count = integer(option, least, most)
        add(option, type=count, default=default, metavar="N", help=f"{meaning} ({default})")
    seconds = number("--seconds", 0.1)
    add("--seconds", type=seconds, default=120.0, metavar="N", help="of an answer; then 503 (120)")
    add_quantise_option(parser)
    add_device_option(parser)
    args = parser.parse_args()
    try:
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
    key = args.api_key or None
    limits = Limits(seconds=args.seconds, max_new_tokens=args.max_new_tokens, api_key=key)
    # any name of this machine is right in a network
    app = create_app(library, limits, LOCAL if is_local else ["*"], args.allow_origin)
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"models: {', '.join(library.runs()) or 'none yet'}")
    print(f"the page: http://{host}:{args.port}/")
    print(f"OpenAI's API: http://{host}:{args.port}/v1   (Ctrl-C ends it)", flush=True)
    try:
        make_server(app, args.host, args.port, args.seconds).run()
    except SystemExit:
        # uvicorn's answer to a port that is in use
        raise InputError(f"--port: {host}:{args.port} cannot be used: name another one") from None


if __name__ == "__main__":
    exit_on_bad_input(main)
