"""A small server that answers as the Hugging Face Hub does, as far as `hf upload` and `from_pretrained` ask.

Their own client talks to it. What the Hub itself would refuse (a name, a license, a card's metadata) it does not know.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

COMMIT = "1" * 40
FOUND = {"X-Repo-Commit": COMMIT, "Access-Control-Expose-Headers": "*"}


@dataclass
class Hub:
    """What was uploaded. files: path -> bytes; large: paths that came as large files; cards: what was to be checked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    cards: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)  # by hash, as large files are sent

    def commit(self, lines: list[dict]) -> None:
        """Each line is one file of a commit, with its bytes or with the hash of an object that came before."""
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
                self.large.add(value["path"])


def hub_app(hub: Hub) -> FastAPI:
    """The addresses of the Hub's API."""
    app = FastAPI()

    @app.post("/api/repos/create")
    async def create(asked: Request) -> dict:
        about = await asked.json()
        name = f"{about['organization']}/{about['name']}"
        return {"url": f"{hub.url}/{name}", "name": name, "id": name}

    @app.post("/api/validate-yaml")
    async def validate(asked: Request) -> dict:
        hub.cards.append((await asked.json())["content"])
        return {"warnings": [], "errors": []}

    @app.post("/api/models/{user}/{name}/preupload/{revision}")
    async def preupload(asked: Request) -> dict:
        files = (await asked.json())["files"]
        modes = ["lfs" if file["path"].endswith(".safetensors") else "regular" for file in files]
        return {
            "files": [
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
                for file, mode in zip(files, modes, strict=True)
            ]
        }

    @app.post("/{user}/{name}.git/info/lfs/objects/batch")
    async def large_files(asked: Request) -> JSONResponse:
        objects = [
            one | {"authenticated": True, "actions": {"upload": {"href": f"{hub.url}/objects/{one['oid']}"}}}
            for one in (await asked.json())["objects"]
        ]
        return JSONResponse({"transfer": "basic", "objects": objects}, media_type="application/vnd.git-lfs+json")

    @app.put("/objects/{oid}")
    async def put(oid: str, asked: Request) -> dict:
        content = await asked.body()
        assert hashlib.sha256(content).hexdigest() == oid
        hub.objects[oid] = content
        return {}

    @app.post("/api/models/{user}/{name}/commit/{revision}")
    async def commit(user: str, name: str, asked: Request) -> dict:
        hub.commit([json.loads(line) for line in (await asked.body()).splitlines()])
        return {"commitUrl": f"{hub.url}/{user}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "pullRequestUrl": None}

    @app.api_route("/{user}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    async def resolve(path: str) -> Response:
        if path not in hub.files:
            return Response(status_code=404, headers=FOUND | {"X-Error-Code": "EntryNotFound"})
        content = hub.files[path]
        return Response(content, headers=FOUND | {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    @app.get("/api/models/{user}/{name}")
    @app.get("/api/models/{user}/{name}/revision/{revision}")
    async def about(user: str, name: str) -> dict:
        siblings = [{"rfilename": path} for path in hub.files]
        return {"id": f"{user}/{name}", "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}

    return app


@contextmanager
def running_hub() -> Iterator[Hub]:
    """The server on a free port of this machine, until the block ends."""
    hub = Hub()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        hub.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
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
