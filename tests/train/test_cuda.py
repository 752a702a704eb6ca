"""On a GPU, if there is one: it learns in every precision, resumes exactly, and skips a bad step by
itself.

`bash benchmarks/gpu.sh --dry-run` runs what it measures here on the CPU, so that no GPU minute is
lost to a mistake.
"""

import os

import pytest
import torch

from model.variants.surgery import with_config
from tests.conftest import random_model, tiny_config
from tests.model.test_compile import assert_same_training
from tests.train.helpers import losses, metrics, pretrain, pretrain_rank, run_world, trace, write_config
from train.machine.compilation import compile_layers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(DEVICE == "cpu" and "HEADLIGHT_DRY_RUN" not in os.environ, reason="needs a GPU")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_every_precision_learns_what_fp32_learns_on_a_cpu(tmp_path, precision, compiled):
    pretrain(write_config(tmp_path, name="cpu", train={"device": "cpu"}))
    pretrain(write_config(tmp_path, train={"precision": precision, "compile": compiled}))
    cpu, gpu = (metrics(tmp_path / "runs" / name, "val") for name in ("cpu", "tiny"))
    assert gpu[-1]["loss"] == pytest.approx(cpu[-1]["loss"], abs=0.05)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", ["eager", "flash", "flex", "sdpa", "varlen", "auto"])
def test_every_backend_trains_packed_documents(tmp_path, backend, compiled):
    model = {"attn_implementation": backend, "hidden_size": 64}
    train = {"precision": "bf16", "compile": compiled}
    config = write_config(tmp_path, model=model, data={"isolate_documents": True}, train=train)
    pretrain(config)
    val = losses(tmp_path / "runs/tiny")
    assert val[-1] < val[0] - 1


def test_compiled_gradients_are_those_of_the_plain_model():
    """PyTorch 2.11 compiled gradients of zero, with the right loss.

    Compiled code rounds to 16 bits less often.
    """
    torch.manual_seed(0)
    lm = random_model(tiny_config()).to(DEVICE).train()
    lm.set_attn_implementation("flash" if DEVICE == "cuda" else "blocked")
    compiled = with_config(lm).train()
    ids = torch.randint(0, 192, (2, 64), device=DEVICE)
    compile_layers(compiled)
    documents = torch.randint(0, 4, (2, 64), device=DEVICE).sort().values
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss, _ = compiled(ids, labels=ids, document_ids=documents)
        expected, _ = lm(ids, labels=ids, document_ids=documents)
    assert_same_training(loss, expected, lm, 5e-3, 0.1)


@pytest.mark.parametrize(("precision", "compiled"), [("fp32", False), ("fp16", False), ("bf16", False), ("bf16", True)])
def test_a_stopped_run_resumes_exactly(tmp_path, precision, compiled):
    switches = {"precision": precision, "compile": compiled, "micro_batch_size": 4}
    changes = {"model": {"hidden_dropout": 0.2}, "train": {"trace": True} | switches}
    config = write_config(tmp_path, **changes)
    assert run_world(1, pretrain_rank, config, ["name=whole"]) == [0]
    val = losses(tmp_path / "runs/whole")
    assert val[-1] < val[0] - 1  # runs that learn nothing would be equal too
    for stop in (1, 5, 9):
        assert run_world(1, pretrain_rank, config, [], stop) == [143]
    assert run_world(1, pretrain_rank, config, []) == [0]
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/whole")


def test_memory_that_runs_out_halves_the_micro_batch(tmp_path):
    model = {"hidden_size": 256, "num_hidden_layers": 4, "attn_implementation": "eager"}
    train = {"max_steps": 2, "tokens_per_step": 8192, "compile": False}
    config = write_config(tmp_path, model=model, train=train, eval={"every": 0})
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(300e6 / total)
    try:
        done = pretrain(config)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "out of memory with" in done.stdout
