"""The wall of a class: real runs and a real server, with HTTP between them."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest

from eval.attention.history import PhaseChange
from serve.app import make_server
from serve.wall import MOST, create_wall
from tests.eval.page.viewer_helpers import chromium, english_in, watched
from tests.train.helpers import metrics, pretrain, refusal, trace, write_config
from train.run.wall import Wall

NAMES = ["Mia", "小明", "", "Jonas", "", "Aïcha", "<img src=x onerror=alert(1)>"[:24], "Li Wei", "", "Priya"]
STEPS = [300, 400, 400, 500, None, 500, 600, 600, 700, 900]


@contextmanager
def serving():
    """The address of a wall in this process."""
    server = make_server(create_wall("192.168.1.20:8000"), "127.0.0.1", 0, 1)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(60)


# one, as each costs 50 ms
HTTP = httpx.Client(trust_env=False)


def get(address, **parameters):
    return HTTP.get(f"http://{address}/wall", params=parameters).json()


def post(address, path, **body):
    answer = HTTP.post(f"http://{address}/{path}", json=body)
    message = answer.json()["error"]["message"] if answer.is_error else ""
    assert "\n" not in message
    return answer.status_code


def laptops(address):
    """Ten laptops report at once, each twice: the head changes, then the birth is known."""
    problems = []

    def laptop(i):
        about = {"id": f"{i:08x}", "config": f"seed_{i}", "seed": i}
        wall = Wall(f"{NAMES[i]}@{address}", about, lambda line: problems.append(line) if "warning" in line else None)
        wall.report(PhaseChange(1, 3, 100, 0, 0.0), 0.1)
        wall.report(PhaseChange(1, i % 4, STEPS[i], 0, 0.0) if STEPS[i] else None, 2.5)
        wall.finish()

    threads = [threading.Thread(target=laptop, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_ten_laptops_report_and_the_wall_has_each_once_when_the_teacher_opens_it():
    with serving() as address:
        assert post(address, "guesses", id="0" * 8, step=700) == 200
        assert post(address, "guesses", id="0" * 8, step=400) == 200  # another guess of the same browser
        assert post(address, "guesses", id="1" * 8, step=600) == 200
        laptops(address)
        closed = get(address, id="0" * 8)
        assert (closed["guesses"], closed["yours"], closed["reports"]) == ([400, 600], 400, 10)
        assert closed["births"] == []  # or the next guess would be none
        assert post(address, "open") == 200
        assert post(address, "guesses", id="2" * 8, step=1) == 409
        births = sorted(get(address)["births"], key=lambda birth: birth["seed"])
        assert [birth["name"] for birth in births] == NAMES
        assert [birth["step"] for birth in births] == STEPS
        assert [birth["head"] for birth in births] == [None if i == 4 else i % 4 for i in range(10)]
        assert set(births[0]) == {"id", "name", "config", "seed", "step", "layer", "head", "copy_gain"}
        HTTP.delete(f"http://{address}/births/{births[6]['id']}")
        assert [birth["seed"] for birth in get(address)["births"] if birth["seed"] == 6] == []


GOOD = {"id": "a" * 8, "config": "x", "seed": 0, "step": 1, "layer": 0, "head": 0, "copy_gain": 0.5}


def test_what_comes_from_the_network_is_limited():
    with serving() as address:
        assert post(address, "births", **GOOD) == 200
        for wrong in (
            {"name": "x" * 25}, {"name": "a\u202eb"}, {"name": "a\x1b[2J"}, {"config": "x" * 101}, {"id": "../../etc"},
            {"step": -1}, {"step": 10**10}, {"copy_gain": 1e9}, {"more": 1}, {"seed": "zero"},
        ):  # fmt: skip
            assert post(address, "births", **GOOD | wrong) == 400, wrong
        assert post(address, "births", **GOOD | {"name": "x" * 3000}) == 413
        assert post(address, "guesses", id="a" * 8, step=10**6) == 400
        for i in range(1, MOST):
            assert post(address, "births", **GOOD | {"id": f"{i:08x}"}) == 200
        assert post(address, "births", **GOOD | {"id": "b" * 8}) == 429
        assert post(address, "births", **GOOD | {"step": 2}) == 200  # the run that is there already


def test_the_teacher_alone_opens_the_wall():
    app = create_wall("")
    client = httpx.ASGITransport(app, client=("192.168.1.9", 1))

    async def from_elsewhere():
        async with httpx.AsyncClient(transport=client, base_url="http://wall") as visitor:
            await visitor.post("/births", json=GOOD)
            opened = await visitor.post("/open")
            removed = await visitor.delete(f"/births/{GOOD['id']}")
            return opened.status_code, removed.status_code, (await visitor.get("/wall")).json()

    opened, removed, wall = asyncio.run(from_elsewhere())
    assert (opened, removed, wall["reports"], wall["is_teacher"]) == (403, 403, 1, False)


@pytest.fixture(scope="module")
def settings():
    return {"eval": {"attention": {"every": 4, "early": [0, 2]}}, "train": {"trace": True}}


def test_a_run_reports_only_if_asked_and_trains_as_without(tmp_path, settings):
    config = write_config(tmp_path, **settings)
    with serving() as address:
        silent = pretrain(config, "name=silent")
        assert get(address)["reports"] == 0
        assert "wall" not in silent.stdout
        done = pretrain(config, "name=told", f"tracking.wall=Mia@{address}")
        post(address, "open")
        (birth,) = get(address)["births"]
    assert "warning" not in done.stdout
    assert (birth["name"], birth["config"], birth["seed"], birth["step"]) == ("Mia", "told", 0, None)  # 12 steps
    assert birth["copy_gain"] == metrics(tmp_path / "runs/told", "attention")[-1]["copy_gain"]
    assert trace(tmp_path / "runs/told") == trace(tmp_path / "runs/silent")


@pytest.mark.parametrize("is_there", [True, False], ids=["it never answers", "nobody listens"])
def test_a_wall_that_is_not_there_costs_one_line(tmp_path, settings, is_there):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not is_there:
            silent.close()
        start = time.monotonic()
        done = pretrain(write_config(tmp_path, **settings), f"tracking.wall=127.0.0.1:{port}")
    assert done.stdout.count("warning: the wall 127.0.0.1:") == 1
    assert json.loads((tmp_path / "runs/tiny/result.json").read_text())["step"] == 12
    assert time.monotonic() - start < 120


def test_an_address_without_a_port_is_refused(tmp_path):
    for wall in ("192.168.1.20", "Mia@", "Mia@host:port", f"{'x' * 25}@host:1", "a/b:80"):
        assert "give an address with a port" in refusal(write_config(tmp_path), f"tracking.wall={wall}")


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_takes_a_guess_then_fills_while_it_is_open(locale, width):
    with serving() as address, chromium() as browser:
        size = {"viewport": {"width": width, "height": 844}, "locale": locale}
        with watched(browser, f"http://{address}/", [f"http://{address}/"], **size) as page:
            page.fill("#step", "400")
            page.click("#guess button")
            page.wait_for_selector("#yours:has-text('400')")
            page.fill("#name", "Mia Li")
            assert page.text_content("#command").endswith("tracking.wall=Mia_Li@192.168.1.20:8000")
            assert locale == "en-US" or english_in(page) == []
            page.click("#open")
            page.wait_for_selector("#wall:not([hidden]) .guess.yours")
            laptops(address)
            page.wait_for_selector("#births tr:nth-child(10)")
            assert page.locator("circle.birth").count() == 9
            assert page.locator("#births td:first-child", has_text="<img").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert locale == "en-US" or english_in(page) == []
