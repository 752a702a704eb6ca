"""Which tokens may come next in an answer of a wanted form: JSON of a schema, or a call of a tool?

The library llguidance, which is optional, says it after every token, from a grammar. All others are
taken out before one is drawn. So a complete answer always has the form, and one that is cut is the
beginning of such an answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.chat import CALL, CALL_END, THINK_END, Reply
from data.tokenizer import Tokenizer

# As json.dumps and our chat template write it. Where white space is free, a small model may write
# blanks for ever.
SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}

# With one of these beside `properties`, an object may have others.
OPEN = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"}


class WantedForm(NamedTuple):
    """JSON of a schema, if there is one, or a call of a function, which a request asks for."""

    field: str  # of the request
    schema: dict[str, Any] | None
    functions: list[dict[str, Any]]


@dataclass
class Form:
    """The form of one answer, and, in llguidance's LLMatcher, how much of it is written."""

    matcher: Any
    tokenizer: Tokenizer
    rows: int  # of the model's head
    is_call: bool  # the whole answer is a call, because the tokenizer has no tokens that mark one

    def allowed(self) -> Tensor:
        """The tokens that may come next: (V,) bool. Raises ValueError where there are none."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        mask = torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self.rows]).bool()
        if self.tokenizer.unk_id is not None:  # what `encode` gives for a character without a token
            mask[self.tokenizer.unk_id] = False
        problem = self.matcher.get_error().partition("\n")[0][:200]
        if problem or not mask.any():
            raise ValueError(problem or "this model has no token for what must follow")
        return mask

    def add(self, token: int) -> bool:
        """Take the next token -> whether the answer is complete, so that nothing may follow."""
        return self.matcher.consume_token(token) and self.matcher.is_stopped()


def make_form(tokenizer: Tokenizer, rows: int, prompt: list[int], schema: dict | None, functions: list[dict]) -> Form:
    """The form of answers to a prompt: JSON of a schema, if there is one, or a call of a function.

    rows: of the model's head. If the prompt has opened thoughts, they come first. Raises ValueError,
    RecursionError for what is nested too deep, and ImportError without llguidance.
    """
    from llguidance import LLMatcher

    think_end, call, call_end = map(tokenizer.backend.token_to_id, (THINK_END, CALL, CALL_END))
    schemas, choices = ([], []) if schema is None else ([schema], ["@schema0"])
    for function in functions if call is not None or schema is None else ():
        name = json.dumps(function["name"], ensure_ascii=False)
        written = json.dumps(f'{{"name": {name}, "arguments": ') + f' @schema{len(schemas)} "}}"'
        if call is not None:
            written = f'<[{call}]> "\\n" {written} "\\n" <[{call_end}]>'
        choices.append(written)
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
            raise ValueError(f"the parameters of {name:.60} must be those of an object")
        schemas.append({"type": "object"} | parameters)
    start = " | ".join(choices)
    if Reply(tokenizer, prompt).thinking:
        start = f"/(.|\\n)*/ <[{think_end}]> /\\n{{0,2}}/ ({start})"
    grammars: list[dict] = [{"lark_grammar": f"start: {start}"}]
    for number, each in enumerate(schemas):
        closed = _closed(each) | {"x-guidance": SPACING}
        grammars.append({"name": f"schema{number}", "json_schema": closed})
    vocabulary = _vocabulary(tokenizer, rows)
    matcher = LLMatcher(vocabulary, json.dumps({"grammars": grammars}), log_level=0)
    form = Form(matcher, tokenizer, rows, is_call=call is None and schema is None)
    form.allowed()  # raises
    return form


def _closed(schema: Any) -> Any:
    """A schema whose objects have the properties that it names alone; or else small models invent others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: each if key in ("const", "enum") else _closed(each) for key, each in schema.items()}
    if schema.get("type") == "object" and "properties" in schema and OPEN.isdisjoint(schema):
        closed["additionalProperties"] = False
    return closed


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, rows: int) -> Any:
    """The tokenizer as llguidance wants it: the bytes of tokens, and a function from text to ids."""
    from llguidance import LLTokenizer, TokenizerWrapper

    texts = [tokenizer.decode_bytes([token]) for token in range(rows)]
    for token in tokenizer.special_ids:
        texts[token] = tokenizer.decode([token], skip_special_tokens=False).encode()

    class Vocabulary:
        bos_token_id, eos_token_id = tokenizer.bos_id, tokenizer.eos_id
        tokens, special_token_ids = texts, sorted(tokenizer.special_ids)

        def __call__(self, text: str) -> list[int]:
            return tokenizer.encode(text)  # in which a special token that is typed stays text

    return LLTokenizer(TokenizerWrapper(Vocabulary()), n_vocab=rows, eos_token=tokenizer.stop_ids)
