"""Run by the Python of another environment: what its transformers makes of directories that
Headlight wrote.

Reads a request as JSON, answers as JSON; the logits lie in files beside the models.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def logits_of(directory: str, ids: torch.Tensor) -> str:
    """Writes DIRECTORY/logits.safetensors. Returns what went wrong, in a line."""
    try:
        lm, found = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        if found["missing_keys"] or found["unexpected_keys"]:
            return f"keys: {found}"
        lm.eval()
        with torch.no_grad():
            save_file({"logits": lm(ids).logits}, Path(directory) / "logits.safetensors")
    except Exception as error:  # whatever an old library raises of a model that it does not know is an answer
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def text_of(directory: str, asked: dict) -> dict:
    """Ids of texts, conversations as text, and what a batch of prompts goes on with, greedily."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    lm = AutoModelForCausalLM.from_pretrained(directory)
    inputs = tokenizer(asked["prompts"], return_tensors="pt", padding=True)
    written = lm.generate(**inputs, max_new_tokens=asked["tokens"], do_sample=False)
    return {
        "ids": [tokenizer(text)["input_ids"] for text in asked["texts"]],
        "decoded": [tokenizer.decode(tokenizer(text)["input_ids"]) for text in asked["texts"]],
        "chats": [tokenizer.apply_chat_template(**chat, tokenize=False) for chat in asked["chats"]],
        "roles": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.model_max_length],
        "written": written[:, inputs["input_ids"].shape[1] :].tolist(),
    }


asked = json.load(sys.stdin)
ids = torch.tensor(asked["ids"])
answer = {
    "transformers": transformers.__version__,
    "torch": torch.__version__,
    "problems": {name: logits_of(directory, ids) for name, directory in asked["models"].items()},
    "texts": {name: text_of(directory, asked) for name, directory in asked["with_tokenizer"].items()},
}
Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")
