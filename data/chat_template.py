"""The chat template: the Jinja text that transformers, and every other program, renders a conversation with."""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
# Part of what makes prepared data itself. Raise it when a conversation gets other ids (data/chat.py included) and
# record the new digest; tests/data/test_versions.py says which. A comment needs no new version.
CHAT_TEMPLATE_VERSION = 1
CHAT_TEMPLATE_DIGESTS = {1: "954ab88876cda5aa"}
