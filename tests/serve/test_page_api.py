"""The page's requests: files of its list, and runs of the folder."""

import base64

import httpx
import numpy as np
import pytest
import torch

from eval.attention import capture
from eval.page.viewer import quantise
from serve.limits import Limits
from serve.run_folder import summaries
from tests.serve.conftest import serving
from tests.serve.page_helpers import HARMFUL_NAME, Growing


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "runs"
    for name in ("first", HARMFUL_NAME):
        run = Growing(folder, name, **{"model.layers": 2})
        run.log(10)
        run.log(20)
        run.seen = [run.look(0), run.look(20, 0.5)]
    (folder.parent / "secret.txt").write_text("not yours", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def address(runs):
    with serving(runs) as (address, _):
        yield address


def get(address, path):
    return httpx.get(f"{address}{path}", timeout=60)


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/page.css", "/page/page.html"])
def test_the_pages_files_come_with_strict_headers(address, path):
    found = get(address, path)
    assert found.status_code == 200
    assert not ("html" in found.headers["content-type"] and ("<style" in found.text or "<script>" in found.text))
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in found.headers


@pytest.mark.parametrize("name", ["%2e%2e", "%2e%2e%2fsecret.txt", "first%2f..%2f..", "none", "%00"])
@pytest.mark.parametrize(
    "path", ["/page/{}", "/live/runs/{}/config", "/live/runs/{}/metrics", "/live/runs/{}/attention", "/v1/models/{}"]
)
def test_no_name_leads_out_of_the_folder(address, path, name):
    found = get(address, path.format(name))
    assert found.status_code == 404
    assert "not yours" not in found.text


def test_every_run_in_a_few_figures(address):
    found = {run["name"]: run for run in get(address, "/live/runs").json()["runs"]}
    assert [*found] == [HARMFUL_NAME, "first"]
    assert found["first"] | {"step": 20, "total": 400, "state": "stopped", "has_model": False} == found["first"]
    assert found["first"]["looks"][0] == 2
    assert get(address, "/live/runs/first/config").json()["model.layers"] == "2"


def test_the_maps_are_those_of_the_look(address, runs):
    about = get(address, "/live/runs/first/attention").json()
    assert [step["step"] for step in about["runs"][0]["steps"]] == [0, 20]
    assert about["runs"][0]["formed"] == {"layer": 1, "head": 2, "step": 20}
    assert about["runs"][0]["moments"][0]["step"] == 20
    number = about["runs"][0]["steps"][1]["maps"]["text"][1]
    codes = get(address, f"/live/runs/first/attention/{number}").content
    from eval.attention.snapshots import file_of, read

    weights = read(file_of(runs / "first/attention", 20)).maps["text"].weights
    assert codes == quantise(weights).tobytes()
    assert np.frombuffer(codes, np.uint8).max() == 255
    for place in ("20/nothing", "30/text", "-1/text"):
        assert get(address, f"/live/runs/first/attention/{place}").status_code == 404


def test_a_log_is_read_from_any_byte_on(tmp_path):
    run = Growing(tmp_path, "run")
    run.log(10)
    text = (
        run.path / "metrics.jsonl"
    ).read_text() + 'not json\n{"step": 15, "tokens": 1, "time_s": NaN, "split": "train"}'
    (run.path / "metrics.jsonl").write_text(text)
    # neither what is damaged nor what is being written
    assert summaries(tmp_path)["run"]["step"] == 10
    with serving(tmp_path) as (address, _):
        rest = httpx.get(f"{address}/live/runs/run/metrics", headers={"Range": "bytes=50-"})
        assert (rest.status_code, rest.text) == (206, text[50:])
        assert httpx.get(f"{address}/live/runs/run/metrics", headers={"Range": "bytes=5000-"}).status_code == 416


def test_whether_a_run_trains(tmp_path):
    def state():
        return summaries(tmp_path)["run"]["state"]

    run = Growing(tmp_path, "run")
    assert state() == "stopped"
    run.begin()
    assert state() == "training"
    run.lock.release()  # a kill leaves the file
    assert state() == "stopped"
    run.end()
    assert state() == "finished"


def test_a_config_of_somebody_else_says_nothing_of_other_files(tmp_path):
    (tmp_path / "secret.yaml").write_text("password: hunter2\n", encoding="utf-8")
    run = Growing(tmp_path / "runs", "run")
    (run.path / "config.yaml").write_text("extends: ../../secret.yaml\ntrain: {lr: .inf}\n", encoding="utf-8")
    with serving(tmp_path / "runs") as (address, _):
        found = get(address, "/live/runs/run/config").json()
    assert "password" not in found
    assert found["train.lr"] == "Infinity"


def test_with_a_key_the_page_asks_for_it(runs):
    with serving(runs, Limits(api_key="open sesame")) as (address, _), httpx.Client(base_url=address) as client:
        assert client.get("/").status_code == 200  # nothing of the runs is in it
        for path in ("/live/runs", "/live/runs/first/attention", "/v1/models"):
            assert client.get(path).status_code == 401
        assert client.post("/page/key", json={"key": "guess"}).status_code == 401
        answer = client.post("/page/key", json={"key": "open sesame"})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert "sesame" not in cookie
        assert client.get("/live/runs").status_code == 200
        client.cookies.clear()
        client.cookies.set("headlight", "0" * 64)
        assert client.get("/live/runs").status_code == 401


def test_a_text_of_ones_own_at_every_checkpoint(folder):
    with serving(folder) as (address, library):
        found = httpx.post(f"{address}/live/runs/text/look", json={"text": "Once there was"}, timeout=60).json()
        (run,) = found["runs"]
        assert [step["step"] for step in run["steps"]] == [10]
        tokens = len(run["texts"][0]["labels"])
        codes = np.frombuffer(base64.b64decode(found["frames"]["10/text"]), np.uint8)
        maps = codes.reshape(len(run["layers"]), len(run["heads"]), tokens * (tokens + 1) // 2)
        served = library.find("text")
        ids = torch.tensor([[served.tokenizer.bos_id, *served.tokenizer.encode("Once there was")]])
        expected = capture(served.lm, ids).weights[:, 0].numpy()
        assert np.abs(maps.astype(int) - quantise(expected).astype(int)).max() <= 1
        for name, text, status in (
            ("text", "", 400),
            ("text", "word " * 500, 400),
            ("none", "a", 404),
            ("..", "a", 404),
        ):
            asked = httpx.post(f"{address}/live/runs/{name}/look", json={"text": text}, timeout=60)
            assert asked.status_code == status
