"""docs/ecosystem.md, The Hub: `hf upload` sends what model.export wrote, and transformers opens
what arrived.

The clients are the real ones; the Hub is played by a small server on this machine, which answers
what they ask. What the Hub itself would refuse (a name, a license, a card's metadata) it does not
know.
"""

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from huggingface_hub import ModelCard

from model import load
from model.export import export
from tests.train.checkpoints import TOKENIZER, training

pytestmark = pytest.mark.slow  # three processes, two of which import torch
NAME = "somebody/demo"
COMMIT = "1" * 40
FOUND = {"X-Repo-Commit": COMMIT, "Access-Control-Expose-Headers": "*"}
OPEN = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer("Once there was a fox", return_tensors="pt")["input_ids"]
torch.save({"ids": ids, "logits": model(ids).logits.detach()}, sys.argv[2])
"""

FETCH = """
import sys
import torch
from data import load_tokenizer
from model import load

ids = torch.load(sys.argv[2], weights_only=True)["ids"]
assert [load_tokenizer(sys.argv[1]).begin("Once there was a fox")] == ids.tolist()
torch.save(load(sys.argv[1])(ids).detach(), sys.argv[3])
"""


@dataclass
class Hub:
    """The uploaded files.

    files: path -> bytes; objects: hash -> bytes, of large ones; cards: to be checked.
    """

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    cards: list[str] = field(default_factory=list)


def hub_app(hub: Hub) -> FastAPI:
    """The addresses of the Hub's API."""
    app = FastAPI()

    @app.post("/api/repos/create")
    async def create() -> dict:
        return {"url": f"{hub.url}/{NAME}", "name": NAME, "id": NAME}

    @app.post("/api/validate-yaml")
    async def validate(asked: Request) -> dict:
        hub.cards.append((await asked.json())["content"])
        return {"warnings": [], "errors": []}

    @app.post(f"/api/models/{NAME}/preupload/{{revision}}")
    async def preupload(asked: Request) -> dict:
        files = [{"path": file["path"], "shouldIgnore": False} for file in (await asked.json())["files"]]
        for file in files:
            file["uploadMode"] = "lfs" if file["path"].endswith(".safetensors") else "regular"
        return {"files": files}

    @app.post(f"/{NAME}.git/info/lfs/objects/batch")
    async def large_files(asked: Request) -> JSONResponse:
        objects = (await asked.json())["objects"]
        for one in objects:
            one |= {"authenticated": True, "actions": {"upload": {"href": f"{hub.url}/objects/{one['oid']}"}}}
        return JSONResponse({"transfer": "basic", "objects": objects}, media_type="application/vnd.git-lfs+json")

    @app.put("/objects/{oid}")
    async def put(oid: str, asked: Request) -> dict:
        hub.objects[oid] = await asked.body()
        assert hashlib.sha256(hub.objects[oid]).hexdigest() == oid
        return {}

    @app.post(f"/api/models/{NAME}/commit/{{revision}}")
    async def commit(asked: Request) -> dict:
        # each is a file, or the hash of an object
        for line in map(json.loads, (await asked.body()).splitlines()):
            value = line["value"]
            if line["key"] == "file":
                hub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.files[value["path"]] = hub.objects[value["oid"]]
        return {"commitUrl": f"{hub.url}/{NAME}/commit/{COMMIT}", "commitOid": COMMIT, "pullRequestUrl": None}

    @app.api_route(f"/{NAME}/resolve/{{revision}}/{{path:path}}", methods=["GET", "HEAD"])
    async def resolve(path: str) -> Response:
        if path not in hub.files:
            return Response(status_code=404, headers=FOUND | {"X-Error-Code": "EntryNotFound"})
        content = hub.files[path]
        return Response(content, headers=FOUND | {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    @app.get(f"/api/models/{NAME}")
    @app.get(f"/api/models/{NAME}/revision/{{revision}}")
    async def about() -> dict:
        siblings = [{"rfilename": path} for path in hub.files]
        return {"id": NAME, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}

    @app.get(f"/api/models/{NAME}/tree/{{revision}}")
    async def tree() -> list:
        return [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in hub.files.items()
        ]

    return app


@contextmanager
def running_hub() -> Iterator[Hub]:
    """The server on a free port of this machine, until the block ends."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        hub = Hub(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server = uvicorn.Server(uvicorn.Config(hub_app(hub), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield hub
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def test_what_was_uploaded_opens_from_its_name(tmp_path):
    folder = tmp_path / "demo-hub"
    (tmp_path / "demo").mkdir()
    run = training(vocab_size=TOKENIZER.vocab_size, max_position_embeddings=64)
    run.steps(1)
    run.save(tmp_path / "demo/checkpoints")
    export(tmp_path / "demo", "hub-folder", folder)
    with running_hub() as hub:
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": "hf_" + "a" * 34,
            # the Hub's newer way to send large files is a service of its own
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }

        def succeed(*command: str) -> None:
            done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr

        succeed(sys.executable, "-m", "huggingface_hub.cli.hf", "upload", NAME, str(folder))
        assert hub.files == {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*")}
        assert [*hub.objects.values()] == [hub.files["model.safetensors"]]
        succeed(sys.executable, "-c", OPEN, NAME, str(tmp_path / "there.pt"))
        shutil.rmtree(tmp_path / "home/hub")
        succeed(sys.executable, "-c", FETCH, NAME, str(tmp_path / "there.pt"), str(tmp_path / "ours.pt"))
    there = torch.load(tmp_path / "there.pt", weights_only=True)
    assert torch.equal(torch.load(tmp_path / "ours.pt", weights_only=True), there["logits"])
    assert torch.equal(load(folder)(there["ids"]), there["logits"])
    card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.license, card.data.pipeline_tag) == ("unknown", "text-generation")
    assert set(hub.cards) == {hub.files["README.md"].decode()}
