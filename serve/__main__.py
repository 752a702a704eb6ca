"""Watch your runs on one page, and talk to your models through OpenAI's API: `python -m serve runs/`

The page shows every run of the folder, also while it trains. Every run that has a checkpoint is a model. It listens on
this machine alone; for others, give --host and --api-key. docs/serving.md shows how to use it, and what protects it.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from pathlib import Path

from configs.command import InputError, exit_on_bad_input, number, whole
from eval.load_model import add_device_option, add_quantise_option

KEY = "HEADLIGHT_API_KEY"  # of the environment, so that the key need not stand in the list of processes


def main() -> int:
    given = parse()
    print(f"looking for models in {given.runs} …", flush=True)  # the imports below take seconds
    from serve.app import LOCAL, create_app, make_server
    from serve.library import Library
    from serve.limits import Limits

    batching = {"max_running": given.max_running, "max_waiting": given.max_waiting}
    library = Library(given.runs, given.device, quantise=given.quantise, **batching)
    limits = Limits(seconds=given.seconds, max_new_tokens=given.max_new_tokens, api_key=given.api_key)
    hosts = LOCAL if is_local(given.host) else ["*"]
    app = create_app(library, limits, hosts, given.allow_origin)
    place = f"[{given.host}]" if ":" in given.host else given.host
    names = ", ".join(library.runs())
    address = f"http://{place}:{given.port}"
    print(
        f"models: {names or 'none yet'}\nthe page: {address}/\nOpenAI's API: {address}/v1   (Ctrl-C ends it)",
        flush=True,
    )
    try:
        make_server(app, given.host, given.port, given.seconds).run()
    except SystemExit:
        raise InputError(f"--port: {place}:{given.port} cannot be used: another program may listen there") from None
    return 0


def parse() -> argparse.Namespace:
    """The command line. Raises InputError."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("runs", type=Path, help="a folder of runs, one run, or a model directory")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1, this machine")
    parser.add_argument("--port", type=whole("--port", 1, 65535), default=8000, metavar="N", help="(8000)")
    parser.add_argument("--api-key", help=f"clients must send it; default: ${KEY}, if it is set")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a web page of this origin may use the API; may be given several times",
    )
    for option, least, most, default, meaning in (
        ("--max-running", 1, 4096, 64, "requests that are answered at once"),
        ("--max-waiting", 0, 10**6, 256, "requests that may wait; more get status 429"),
        ("--max-new-tokens", 1, 2**24, 2048, "tokens of an answer"),
    ):
        parser.add_argument(
            option, type=whole(option, least, most), default=default, metavar="N", help=f"{meaning} ({default})"
        )
    seconds = number("--seconds", 0.1)
    parser.add_argument("--seconds", type=seconds, default=120.0, metavar="N", help="of an answer; then 503 (120)")
    add_quantise_option(parser)
    add_device_option(parser)
    given = parser.parse_args()
    given.api_key = given.api_key or os.environ.get(KEY) or None
    if not is_local(given.host) and given.api_key is None:
        raise InputError(
            f"--host {given.host}: others could use your models: give --api-key as well (or set {KEY}), or leave "
            "--host out to serve this machine alone"
        )
    if "*" in given.allow_origin:
        raise InputError("--allow-origin *: every web page could use your models: name the pages")
    return given


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    exit_on_bad_input(main)
