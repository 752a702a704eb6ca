"""Answers of a wanted form, as OpenAI's client asks for them: whatever the model would say, JSON of
the schema comes.

The model is one of the repository. It was trained on stories, so nothing but the form makes it
write JSON.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from configs.files import PRETRAINED
from data.chat import prompt_ids
from data.config import TokenizerConfig
from data.reply import THINK_END
from data.tokenizer import load_tokenizer, train_tokenizer
from serve.batching import Batcher
from serve.structured import make_form
from tests.conftest import random_model, tiny_config
from tests.serve.conftest import serving
from tests.serve.test_batching import Client
from tests.train.foreign import foreign_directory

SAID = [{"role": "user", "content": "Tiko the fox found a ball. Who has it?"}]
CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"],
        "additionalProperties": False, "$defs": {"City": {"enum": ["北京", 'a "b"', "c\\d"]}}}  # fmt: skip
FUNCTIONS = {"weather": CITY, "run_away": {"type": "object", "additionalProperties": False}}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": p, "strict": True}} for n, p in FUNCTIONS.items()]
REQUIRED = {"tools": TOOLS, "tool_choice": "required"}


def json_of(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "wanted", "schema": schema}}}


def client_of(address):
    return openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client():
    with serving(PRETRAINED / "reader_sft") as (address, _), client_of(address) as client:
        yield client


def ask(client, stream=False, **asked):
    """(content, calls as (name, arguments), finish_reason) of every answer."""
    asked = {"model": "reader_sft", "messages": SAID, "max_tokens": 220, "seed": 3} | asked
    response = client.chat.completions.create(**asked, stream=stream)
    if not stream:
        messages = [(choice.message, choice.finish_reason) for choice in response.choices]
        calls = [[(call.function.name, call.function.arguments) for call in m.tool_calls or ()] for m, _ in messages]
        return [(message.content or "", call, end) for (message, end), call in zip(messages, calls, strict=True)]
    answers = [["", [], None] for _ in range(asked.get("n", 1))]
    for choice in (choice for event in response for choice in event.choices):
        answer = answers[choice.index]
        answer[0] += choice.delta.content or ""
        answer[1] += [(call.function.name, call.function.arguments) for call in choice.delta.tool_calls or ()]
        answer[2] = choice.finish_reason
    return [tuple(answer) for answer in answers]


def random_schema(rng, depth=3):
    """Any schema of bounded size, so that an answer ends before its tokens do."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern"]
    kind = rng.choice([*kinds, *(["object", "array", "anyOf"] * 3 if depth else [])])
    if kind == "object":
        names = rng.sample(["name", "北京", 'a "b"', "x y", "ключ", "\\n"], rng.randint(0, 4))
        properties = {name: random_schema(rng, depth - 1) for name in names}
        needed = [name for name in names if rng.random() < 0.7]
        return {"type": "object", "properties": properties, "required": needed}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": rng.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
    return {
        "string": {"type": "string", "maxLength": rng.randint(0, 9)},
        "integer": {"type": "integer", "minimum": rng.randint(-99, 0), "maximum": rng.randint(1, 999)},
        "number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "enum": {"enum": rng.sample(["red", 7, None, "🦊", {"a": [1]}, [], False], 3)},
        "const": {"const": rng.choice(["</think>", "<|im_end|>", -0.5, {"k": "v"}])},
        "pattern": {"type": "string", "pattern": rng.choice([r"^\d{4}-\d\d$", "^(ab|c){1,3}$"])},
    }[kind]


def test_answers_validate_against_random_schemas(client):
    for seed in range(25):
        schema = random_schema(Random(seed))
        for content, calls, end in ask(client, **json_of(schema), n=2, seed=seed):
            assert (end, calls) == ("stop", []), schema
            jsonschema.validate(json.loads(content), schema)


def test_objects_have_the_properties_that_are_named_unless_the_schema_asks_for_more(client):
    inner = {"type": "object", "properties": {"n": {"type": "null"}}}
    schema = {"type": "object", "properties": {"a": inner, "b": {"const": inner}}, "required": ["a", "b"]}
    for content, _, end in ask(client, **json_of(schema), n=4):
        value = json.loads(content)
        assert (end, value["b"], value["a"].keys() - {"n"}, value.keys()) == ("stop", inner, set(), {"a", "b"})
    tokenizer = load_tokenizer(PRETRAINED / "reader_sft")
    for more in (False, True):
        other = inner | ({"additionalProperties": {}} if more else {})
        form = make_form(tokenizer, tokenizer.vocab_size, [1], other, [])
        ids = tokenizer.encode('{"z')
        assert all(form.allowed()[token] and not form.add(token) for token in ids) == more


def test_an_object_of_any_kind_and_the_form_of_openais_own_client(client):
    (answer,) = ask(client, response_format={"type": "json_object"}, max_tokens=40, temperature=0)
    assert answer[0].startswith("{")
    assert ask(client, response_format={"type": "text"}, temperature=0) == ask(client, temperature=0)

    class Fox(BaseModel):
        is_red: bool
        legs: int

    answer = client.chat.completions.parse(model="reader_sft", messages=SAID, response_format=Fox, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Fox)


def check_call(answer, names=tuple(FUNCTIONS)):
    content, ((name, arguments),), end = answer
    assert (content, end) == ("", "tool_calls")
    assert name in names
    jsonschema.validate(json.loads(arguments), FUNCTIONS[name])


def test_a_tool_is_called_where_one_must_be(client):
    for answer in ask(client, **REQUIRED, n=4):
        check_call(answer)
    for name in FUNCTIONS:
        named = {"tool_choice": {"type": "function", "function": {"name": name}}, "parallel_tool_calls": False}
        check_call(*ask(client, tools=TOOLS, **named), names=[name])
    for content, calls, _ in ask(client, tools=TOOLS, **json_of(CITY), n=4):  # one or the other
        assert bool(content) != bool(calls)
    for asked in ({}, {"tool_choice": "none"}):  # as without any of this
        assert not ask(client, tools=TOOLS, **asked)[0][1]


@pytest.mark.parametrize("vocabulary", ["padded", "exact"])
def test_a_tokenizer_without_tokens_for_calls_can_call_as_well(tmp_path, vocabulary):
    directory, _ = foreign_directory(tmp_path / "foreign", "smollm2", vocabulary)
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    (directory / "chat_template.jinja").write_text(template)
    end = load_tokenizer(directory).special_id("<|im_end|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    with serving(directory) as (address, _), client_of(address) as client:
        asked = {"model": "foreign", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]} | REQUIRED
        for stream in (False, True):
            check_call(*ask(client, stream, **asked))
        content, calls, end = ask(client, **asked | {"max_tokens": 5})[0]
        assert (content[:2], calls, end) == ('{"', [], "length")
        inside = load_tokenizer(directory).encode('"')[-1]
        content, calls, end = ask(client, **asked | {"extra_body": {"stop_token_ids": [inside]}})[0]
        assert (content, calls, end) == ("{", [], "stop")


@pytest.mark.parametrize("asked", [json_of(CITY), REQUIRED], ids=["schema", "call"])
def test_streamed_answers_are_the_whole_ones(client, asked):
    assert ask(client, stream=True, n=3, **asked) == ask(client, n=3, **asked)


def test_answers_of_any_form_do_not_depend_on_each_other(client):
    several = [json_of(CITY), REQUIRED, {"max_tokens": 30}, json_of({"type": "array"}) | {"max_tokens": 50}] * 2
    expected = [ask(client, **asked) for asked in several]
    with ThreadPoolExecutor(len(several)) as pool:
        assert [*pool.map(lambda asked: ask(client, **asked), several)] == expected


def test_what_is_cut_says_so_and_is_the_beginning(client):
    whole = ask(client, **json_of(CITY))[0][0]
    for content, _, end in ask(client, **json_of(CITY), max_tokens=4, n=2):
        assert end == "length"
        assert 0 < len(content) < len(whole)
        with pytest.raises(json.JSONDecodeError):
            json.loads(content)
    for content, calls, end in ask(client, **REQUIRED, max_tokens=4, n=2):
        assert (bool(content), calls, end) == (True, [], "length")


def test_thoughts_that_the_prompt_has_opened_come_first():
    tokenizer = load_tokenizer(PRETRAINED / "reader_sft")
    prompt = prompt_ids(tokenizer, SAID, enable_thinking=True)
    form = make_form(tokenizer, tokenizer.vocab_size, prompt, {"const": "yes"}, [])
    for token in tokenizer.encode('Hm. {"no": 1}\n'):
        assert form.allowed()[token]
        assert not form.add(token)
    assert not form.allowed()[list(tokenizer.stop_ids)].any()
    for token in [tokenizer.special_id(THINK_END), *tokenizer.encode('\n\n"yes')]:
        assert form.allowed()[token]
        assert not form.add(token)
    assert tokenizer.decode(form.allowed().nonzero()[:, 0].tolist()) == '"'
    assert form.add(tokenizer.encode('"')[0])


DEEP = {}
for _ in range(200):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "regex"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "json_object", "schema": CITY}},
        json_of({"type": "obj"}),
        json_of({"$ref": "https://example.com/schema"}),
        json_of({"type": "string", "pattern": "(?=a)"}),
        json_of({"uniqueItems": True}),
        json_of(DEEP),
        json_of(CITY) | {"messages": [*SAID, {"role": "assistant", "content": "{"}],
                         "extra_body": {"continue_final_message": True}},
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sing"}}},
        {"tools": TOOLS, "tool_choice": "always"},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": [{"function": {"name": "f", "parameters": {"type": "obj"}}}], "tool_choice": "required"},
        {"tools": [{"function": {"name": "f", "parameters": [1]}}], "tool_choice": "required"},
        {"tools": [{"function": "f"}], "tool_choice": "required"},
        {"tools": [{"function": "f"}], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_in_one_line(client, asked):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, stream, **asked)
        assert "\n" not in refused.value.body["message"]


@pytest.mark.parametrize("asked", [json_of(CITY), REQUIRED])
def test_without_the_library_the_refusal_names_it(client, asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.BadRequestError, match="pip install llguidance"):
        ask(client, **asked)
    assert ask(client, tools=TOOLS, max_tokens=4)


def test_the_responses_api_says_what_to_use(client):
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.responses.create(model="reader_sft", input="Hi")


def test_a_form_that_cannot_go_on_ends_that_answer_alone():
    class Stuck:
        def allowed(self):
            raise ValueError("too complex")

    lm = random_model(tiny_config(vocab_size=96))
    clients = [Client([5, 6], 4), Client([5, 6], 4, form=Stuck()), Client([5], 4)]
    batcher = Batcher(lm)
    for one in clients:
        batcher.submit(one.request)
    while batcher.step():
        pass
    assert [one.got[-1].reason for one in clients] == ["length", "error", "length"]
    assert "too complex" in clients[1].got[-1].message


def test_a_tokenizer_that_lacks_a_character_is_refused_or_stops_there():
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ['"b'])
    with pytest.raises(ValueError, match="^this model has no token"):
        make_form(tokenizer, tokenizer.vocab_size, [1], {"type": "object"}, [])
    form = make_form(tokenizer, tokenizer.vocab_size, [1], {"enum": ["bx", "bz"]}, [])
    for token in tokenizer.encode('"b'):
        assert form.allowed().nonzero()[:, 0].tolist() == [token]
        assert not form.add(token)
    with pytest.raises(ValueError, match="NoExtension|no token"):
        form.allowed()
