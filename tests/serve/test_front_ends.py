"""Programs to chat with, replayed: every request that they send is answered in the form that they
read.
"""

import json
from pathlib import Path

import httpx
import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

REQUESTS = [
    pytest.param(request, id=f"{file.stem}: {request['name']}")
    for file in sorted((Path(__file__).parent / "front_ends").glob("*.json"))
    for request in json.loads(file.read_text(encoding="utf-8"))["requests"]
]
assert len(REQUESTS) >= 9


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_request_is_answered_in_openais_form(address, request_):
    body = request_.get("body")
    answer = httpx.request(
        request_["method"],
        f"{address}/v1{request_['path']}",
        json=body,
        headers={"Authorization": "Bearer none", **request_.get("headers", {})},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    if body is None:
        names = [Model.model_validate(one, strict=True).id for one in answer.json()["data"]]
        assert "chat" in names
    elif not body.get("stream"):
        found = ChatCompletion.model_validate(answer.json(), strict=True)
        assert isinstance(found.choices[0].message.content, str)
        assert found.usage.completion_tokens <= body.get("max_tokens", body.get("max_completion_tokens", 10**9))
    else:
        *events, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert done == "[DONE]"
        chunks = [ChatCompletionChunk.model_validate_json(event) for event in events]
        ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert ends in (["stop"], ["length"])
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        wants_usage = body.get("stream_options", {}).get("include_usage", False)
        assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [wants_usage]
