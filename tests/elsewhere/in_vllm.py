"""Run by the Python of another environment: what its vLLM makes of directories that Headlight
wrote.

Reads a request as JSON, writes the answer as JSON to the file that it names: vLLM writes to the
terminal itself.
"""

import json
import os
import sys
from pathlib import Path

os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GB; otherwise it takes a share of the whole memory
# no processes that import everything once more for each model; an error is raised here instead of
# there
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork"}
os.environ |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def asked_of(directory: str, asked: dict) -> dict:
    """Ids and greedy answers; or what went wrong, in a line."""
    from vllm import LLM, SamplingParams

    try:
        lm = LLM(directory, dtype="float32", enforce_eager=True, max_num_seqs=8)
        settings = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, logprobs=0)
        answers = [(one.prompt_token_ids, one.outputs[0]) for one in lm.generate(asked["prompts"], settings)]
    except Exception as error:  # how it refuses a model is an answer
        return {"problem": f"{type(error).__name__}: {error}"}
    return {
        "problem": "",
        "ids": [list(ids) for ids, _ in answers],
        "written": [list(out.token_ids) for _, out in answers],
        "logprobs": [
            [step[token].logprob for token, step in zip(out.token_ids, out.logprobs, strict=True)] for _, out in answers
        ],
    }


if __name__ == "__main__":  # vLLM starts processes that import this file
    asked = json.load(sys.stdin)
    answer = {name: asked_of(directory, asked) for name, directory in asked["models"].items()}
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")
