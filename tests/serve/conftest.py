"""Two small models in a folder of runs, and a server that listens on a free port of this machine."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
import torch

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from model import save
from serve.app import create_app, make_server
from serve.library import Library
from serve.limits import Limits
from storyworld import converse
from tests.conftest import random_model, tiny_config
from tests.eval.page.viewer_helpers import chromium
from tests.serve.chat_helpers import make_runs


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """runs/chat was trained on chats, runs/text on texts; neither was trained."""
    runs = tmp_path_factory.mktemp("served") / "runs"
    said = [message["content"] for i in range(20) for message in converse(0, i)["conversations"]]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), said)
    for name, ends in (("chat", tokenizer.stop_ids), ("text", tokenizer.eos_id)):
        fields = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 256, "eos_token_id": ends}
        checkpoint = runs / name / "checkpoints/step_00000010"
        checkpoint.mkdir(parents=True)
        torch.manual_seed(0)
        lm = random_model(tiny_config(**fields))
        with torch.no_grad():
            lm.lm_head.weight[list(tokenizer.special_ids)] = 0  # so that it does not end by itself
        save(lm, checkpoint)
        tokenizer.save(checkpoint)
        (runs / name / "checkpoints/latest").write_text("step_00000010\n", encoding="utf-8")
    (runs / "unfinished").mkdir()
    (runs.parent / "secret.txt").write_text("not yours", encoding="utf-8")
    return runs


@contextmanager
def serving(folder, limits=None, hosts=("127.0.0.1",), origins=(), **batching):
    """The address of a server, and its library; stopped at the end as SIGTERM stops it."""
    library = Library(folder, "cpu", **batching)
    app = create_app(library, limits or Limits(), hosts, origins)
    server = make_server(app, "127.0.0.1", 0, 30)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", library
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as found:
        yield found


@pytest.fixture
def address(server):
    return server[0]


@pytest.fixture(scope="session")
def chat_runs(folder, tmp_path_factory):
    """Runs that the page's chat can look into."""
    return make_runs(folder, tmp_path_factory.mktemp("looked_into"))


@pytest.fixture(scope="module")
def chat_address(chat_runs):
    with serving(chat_runs) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser
