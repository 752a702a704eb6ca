"""docs/ecosystem.md, The Hub: `hf upload` sends what model.export wrote, and transformers opens what arrived.

The Hub is played by a small server on this machine; the clients are the real ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from model import load
from model.export import export
from tests.elsewhere.hub_server import running_hub
from tests.train.checkpoints import TOKENIZER, training

pytestmark = pytest.mark.slow  # three processes, two of which import torch
NAME = "somebody/demo"
OPEN = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer("Once there was a fox", return_tensors="pt")["input_ids"]
torch.save({"ids": ids, "logits": model(ids).logits.detach()}, sys.argv[2])
"""


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
            "HF_HUB_DISABLE_XET": "1",  # the Hub's newer way to send large files is a service of its own
            "NO_PROXY": "127.0.0.1",
        }

        def succeed(*command: str) -> None:
            done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr

        succeed(str(Path(sys.executable).with_name("hf")), "upload", NAME, str(folder))
        assert hub.files == {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*")}
        assert hub.large == {"model.safetensors"}
        succeed(sys.executable, "-c", OPEN, NAME, str(tmp_path / "there.pt"))
    there = torch.load(tmp_path / "there.pt", weights_only=True)
    assert torch.equal(load(folder)(there["ids"]), there["logits"])
    card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.license, card.data.pipeline_tag) == ("unknown", "text-generation")
    assert set(hub.cards) == {hub.files["README.md"].decode()}
