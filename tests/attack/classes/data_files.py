"""Files of text that are torn, foreign, compressed badly, or written by another program than their name says."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from tests.attack.attack import Case
from tests.attack.victims import write_config

PREPARE, INSPECT, REPORT = "data.prepare", "data.inspect", "data.tokenizer_report"
LINES = [f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}." for i in range(60)]
MANY = 50_000  # letters of a document that is long, and levels of one that is deep


def jsonl(records: list) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def table(delimiter: str) -> bytes:
    return "".join(f'{a}{delimiter}"{b}"\n' for a, b in [("id", "text"), *enumerate(LINES)]).encode()


def parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": LINES, "id": list(range(len(LINES)))}), out)
    return out.getvalue()


def zst(raw: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(raw, "zstd", asbytes=True)


RECORDS = [{"text": line, "id": i} for i, line in enumerate(LINES)]
WHOLE: dict[str, Callable[[], bytes]] = {
    "txt": lambda: "\n".join(LINES).encode(),
    "md": lambda: "\n\n".join(LINES).encode(),
    "jsonl": lambda: jsonl(RECORDS),
    "json": lambda: json.dumps(RECORDS).encode(),
    "csv": lambda: table(","),
    "tsv": lambda: table("\t"),
    "parquet": parquet,
    "txt.gz": lambda: gzip.compress(WHOLE["txt"]()),
    "jsonl.gz": lambda: gzip.compress(WHOLE["jsonl"]()),
    "txt.zst": lambda: zst(WHOLE["txt"]()),
    "jsonl.zst": lambda: zst(WHOLE["jsonl"]()),
}
TEXT = ("txt", "md", "jsonl", "json", "csv", "tsv")
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda raw: b"",
    "one byte": lambda raw: raw[:1],
    "only white space": lambda raw: b" \n\t\r\n" * 50,
    "half of it": lambda raw: raw[: len(raw) // 2],
    "all but its last byte": lambda raw: raw[:-1],
    "rubbish behind it": lambda raw: raw + b"\xff\x00rubbish",
    "itself twice": lambda raw: raw + raw,
    "zero bytes": lambda raw: b"\0" * 3000,
    "a zero byte inside": lambda raw: raw[: len(raw) // 2] + b"\0" + raw[len(raw) // 2 :],
    "random bytes": lambda raw: Random(1).randbytes(3000),
    "a pickle": lambda raw: b"\x80\x04\x95" + raw,
    "a picture": lambda raw: b"\x89PNG\r\n\x1a\n" + raw,
    "an archive": lambda raw: gzip.compress(raw),
    "a bit flipped early": lambda raw: flipped(raw, len(raw) // 20),
    "a bit flipped in the middle": lambda raw: flipped(raw, len(raw) // 2),
    "a bit flipped at the end": lambda raw: flipped(raw, len(raw) - 5),
}
REWRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "UTF-16": lambda raw: raw.decode().encode("utf-16"),
    "Latin-1": lambda raw: raw.decode().encode("latin-1", "replace"),
    "half a surrogate pair": lambda raw: raw.replace(b"mat", b"\xed\xa0\x80"),
    "overlong UTF-8": lambda raw: raw.replace(b"mat", b"\xc0\xaf"),
    "line ends of Windows": lambda raw: raw.replace(b"\n", b"\r\n"),
    "line ends of an old Mac": lambda raw: raw.replace(b"\n", b"\r"),
    "mixed line ends": lambda raw: raw.replace(b"\n", b"\r", 20),
    "a stray quote": lambda raw: raw.replace(b"mat", b'm"at', 1),
    "a quote that stays open": lambda raw: raw + b'99,"open\n' * 3,
    "no line end at all": lambda raw: raw.replace(b"\n", b" "),
    "escape characters": lambda raw: raw.replace(b"mat", b"\x1b[2J\x07"),
    "a very long line": lambda raw: raw + b"x" * MANY + b"\n",
    "many commas": lambda raw: raw + b"," * MANY + b"\n",
    "many brackets": lambda raw: raw + b"[" * MANY + b"\n",
}
VALUES: dict[str, str] = {  # of `text`, in JSON
    "a number of 5,000 digits": "9" * 5000,
    "a number beyond floats": "1e999",
    "NaN": "NaN",
    "null": "null",
    "true": "true",
    "an object": '{"a": 1}',
    "a list of numbers": "[1, 2]",
    "a deep list": "[" * 90 + "]" * 90,
    "a list deeper than Python goes": "[" * MANY + "]" * MANY,
    "an object deeper than Python goes": '{"a":' * MANY + "1" + "}" * MANY,
    "deep, but Python reads it": "[" * 900 + "]" * 900,
    "half a surrogate pair": '"\\ud800"',
    "an escaped zero": '"a\\u0000b"',
    "nothing": '""',
    "white space": '" \\n "',
    "a long text": json.dumps("word " * MANY),
    "a long word": json.dumps("x" * MANY),
}


def cases() -> Iterator[Case]:
    for kind in WHOLE:
        for what, damage in DAMAGE.items():
            yield case(PREPARE, f"{what} in a .{kind} file", kind, damage)
    for kind in TEXT:
        for what, change in REWRITTEN.items():
            yield case(PREPARE, f"{what} in a .{kind} file", kind, change)
    for command in (INSPECT, REPORT):
        for kind in ("jsonl", "csv", "parquet", "txt.gz"):
            for what in ("nothing", "half of it", "random bytes", "a bit flipped in the middle"):
                yield case(command, f"{what} in a .{kind} file", kind, DAMAGE[what])
    for records in ("text", "conversations"):
        for what, value in VALUES.items():
            for kind in ("jsonl", "json"):
                change = partial(with_value, value=value, kind=kind, chat=records == "conversations")
                yield case(PREPARE, f"{what} as {records} of a .{kind} file", kind, change, records=records)
    for kind in ("jsonl", "json", "csv"):
        for what in ("a zero byte inside", "a bit flipped in the middle"):
            skip = {"on_bad_record": "skip", "drop_duplicates": True}
            yield case(PREPARE, f"{what} in a .{kind} file, skipped", kind, DAMAGE[what], **skip)


def case(command: str, name: str, kind: str, change: Callable[[bytes], bytes], **data: object) -> Case:
    prepare = partial(put, kind=kind, change=change, data=data)
    return Case(f"{command}: {name}", (command, "tiny.yaml"), prepare, may_work=True)


def put(folder: Path, kind: str, change: Callable[[bytes], bytes], data: dict) -> None:
    source = {"kind": "files", "path": f"damaged.{kind}"}
    write_config(folder, data={"source": source, "tokenizer": {"kind": "byte"}, "sequence_length": 32} | data)
    (folder / f"damaged.{kind}").write_bytes(change(WHOLE[kind]()))


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]


def with_value(raw: bytes, value: str, kind: str, chat: bool) -> bytes:
    """Good records, and one with this value as its text, or as an argument of a tool call."""
    if chat:
        call = f'[{{"name": "f", "arguments": {{"a": {value}}}}}]'
        talk = '{"messages": [{"role": "user", "content": "hi %d"}, {"role": "assistant", "content": "a"%s}]}'
        found = [talk % (i, "") for i in range(60)] + [talk % (99, f', "tool_calls": {call}')]
    else:
        found = [json.dumps(record) for record in RECORDS] + [f'{{"text": {value}}}']
    return "\n".join(found).encode() if kind == "jsonl" else f"[{', '.join(found)}]".encode()
