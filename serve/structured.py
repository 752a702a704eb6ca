"""Force the form of an answer: JSON of a schema, or a call of a tool.

After every token, the optional library llguidance lists the tokens that its grammar allows; the
others cannot be drawn. So a complete answer always has the form.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.reply import CALL, CALL_END, THINK_END, Reply
from data.tokenizer import Tokenizer

# The spacing of json.dumps. With free white space, a small model may write blanks for ever.
SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
# A schema with one of these may have properties that it does not list.
OPEN = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"}


class WantedForm(NamedTuple):
    """The form that a request asks for: JSON of a schema, or a call of a function."""

    # of the request; errors name it
    field: str
    schema: dict[str, Any] | None
    functions: list[dict[str, Any]]


@dataclass
class Form:
    """The form of one answer, and how much of it is written."""

    # llguidance's LLMatcher
    matcher: Any
    tokenizer: Tokenizer
    # Rows of the model's head: it may have more than the tokenizer has tokens.
    rows: int
    # the whole answer is a call, because the tokenizer has no tokens that mark one
    is_call: bool

    def allowed(self) -> Tensor:
        """Return the tokens that may come next: (V,) bool. Raises ValueError if there are none."""
        # one bit for each token, in whole bytes
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        mask = torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self.rows]).bool()
        # `encode` gives this id for every character without a token, so it stands for no text
        if self.tokenizer.unk_id is not None:
            mask[self.tokenizer.unk_id] = False
        problem = self.matcher.get_error().partition("\n")[0][:200]
        if problem or not mask.any():
            raise ValueError(problem or "this model has no token for what must follow")
        return mask

    def add(self, token: int) -> bool:
        """Add the next token. Return True if the answer is complete."""
        return self.matcher.consume_token(token) and self.matcher.is_stopped()


def make_form(
    tokenizer: Tokenizer, rows: int, prompt: list[int], schema: dict | None, functions: list[dict]
) -> Form:
    """Return the form of answers to a prompt: JSON of the schema, or a call of a function.

    rows: of the model's head. Raises ValueError, RecursionError if the schema is nested too deep,
    and ImportError without llguidance.
    """
    from llguidance import LLMatcher

    think_end, call, call_end = map(tokenizer.backend.token_to_id, (THINK_END, CALL, CALL_END))
    # each schema becomes a rule of the grammar, with its place in this list as its name
    schemas: list[dict] = [] if schema is None else [schema]
    choices = ["@schema0"] if schemas else []
    # without tokens that mark it, a call looks like other JSON
    if call is None and schemas:
        functions = []
    for function in functions:
        name = json.dumps(function["name"], ensure_ascii=False)
        # a rule of the grammar: "{\"name\": \"add\", \"arguments\": " @schema1 "}"
        before_arguments = json.dumps(f'{{"name": {name}, "arguments": ')
        written = f'{before_arguments} @schema{len(schemas)} "}}"'
        if call is not None:
            written = f'<[{call}]> "\\n" {written} "\\n" <[{call_end}]>'
        choices.append(written)
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
            raise ValueError(f"the parameters of {name:.60} must be those of an object")
        schemas.append({"type": "object"} | parameters)
    start = " | ".join(choices)
    # if the prompt opens thoughts, they come first
    if Reply(tokenizer, prompt).thinking:
        start = f"/(.|\\n)*/ <[{think_end}]> /\\n{{0,2}}/ ({start})"
    grammars: list[dict] = [{"lark_grammar": f"start: {start}"}]
    for number, each in enumerate(schemas):
        closed = _closed(each) | {"x-guidance": SPACING}
        grammars.append({"name": f"schema{number}", "json_schema": closed})
    vocabulary = _vocabulary(tokenizer, rows)
    matcher = LLMatcher(vocabulary, json.dumps({"grammars": grammars}), log_level=0)
    form = Form(matcher, tokenizer, rows, is_call=call is None and schema is None)
    # raises if the model has no token to begin with
    form.allowed()
    return form


def _closed(schema: Any) -> Any:
    # forbids properties that a schema does not list, because small models invent some
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    # const and enum hold values, which may look like schemas
    for key in schema.keys() - {"const", "enum"}:
        closed[key] = _closed(schema[key])
    if schema.get("type") == "object" and "properties" in schema and OPEN.isdisjoint(schema):
        closed["additionalProperties"] = False
    return closed


# One takes seconds to make.
@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, rows: int) -> Any:
    # for llguidance: the bytes of each token, and text to ids
    from llguidance import LLTokenizer, TokenizerWrapper

    texts = [tokenizer.decode_bytes([token]) for token in range(rows)]
    for token in tokenizer.special_ids:
        texts[token] = tokenizer.decode([token], skip_special_tokens=False).encode()

    class Vocabulary:
        tokens = texts
        bos_token_id = tokenizer.bos_id
        eos_token_id = tokenizer.eos_id
        special_token_ids = sorted(tokenizer.special_ids)

        def __call__(self, text: str) -> list[int]:
            return tokenizer.encode(text)

    return LLTokenizer(TokenizerWrapper(Vocabulary()), n_vocab=rows, eos_token=tokenizer.stop_ids)
