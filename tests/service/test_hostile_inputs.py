"""Hostile inputs with their expected answers, of which none is a 5xx.

Each table lists a name, the input, and the expected status with the problem's field or type.
"""

import gzip
import json
import socket
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy import func, select

from dasl_core.spec.base import SpecModel, StrictModel, kind_of
from service.db.models import Job
from service.db.session import Database
from service.server.app import create_app
from service.server.thread import ApiThread
from service.settings import Settings
from tests.support.api_under_test import Api, Worker

JSON = {"Content-Type": "application/json"}
SHA = "0" * 64
# How a very long key appears in the name of a field.
SHORTENED = "x" * 97 + "..."


def with_raw(headers: dict[str, str], name: str, value: str | bytes) -> dict[bytes, bytes]:
    """Return the headers with one more, whose value may be bytes that are not text."""
    encoded = {key.encode(): text.encode() for key, text in headers.items()}
    return encoded | {name.encode(): value if isinstance(value, bytes) else value.encode("ascii")}


def spec(**fields: Any) -> bytes:
    return json.dumps({"dataset": "emoji", **fields}).encode()


def nested(levels: int) -> bytes:
    return b'{"dataset":' + b"[" * levels + b"]" * levels + b"}"


def outcome(answer: Any) -> tuple[int, str]:
    """Return the status with the faulty field, or with the type of the problem."""
    if answer.status_code < 400:
        return answer.status_code, ""
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert len(answer.content) < 20_000, "an error is no echo"
    fields = [error["field"] for error in problem["errors"]]
    return answer.status_code, fields[0] if fields else problem["type"]


def bodies(model: type[StrictModel] = StrictModel) -> Iterator[type[StrictModel]]:
    """Yield the bodies of the API's requests, and their parts."""
    for each in model.__subclasses__():
        if not issubclass(each, SpecModel):
            yield each
            yield from bodies(each)


CONVERTED = {"number": (True, "1", "1e-3"), "boolean": (0, 1.0, "no", "true"), "other": ()}


def test_no_value_of_a_body_is_converted() -> None:
    fields = [
        (body, name, kind_of(field))
        for body in bodies()
        for name, field in body.model_fields.items()
    ]
    expected = {"priority", "weight", "version", "max_gpus", "size", "keep_hours", "seeds"}
    assert expected <= {name for _, name, kind in fields if kind == "number"}
    assert {"disabled", "pinned"} <= {name for _, name, kind in fields if kind == "boolean"}
    for body, name, kind in fields:
        for value in CONVERTED[kind]:
            with pytest.raises(ValidationError) as caught:
                body.model_validate({name: value})
            found = [error["loc"][0] for error in caught.value.errors() if error["loc"]]
            assert name in found, (body, name, value)


# Bodies of POST /v1/jobs.
BODIES: dict[str, tuple[bytes, tuple[int, str]]] = {
    # Numbers that JSON does not have or that fit no number type.
    "NaN": (b'{"dataset":"emoji","priority":NaN}', (400, "bad-request")),
    "-Infinity": (b'{"dataset":"emoji","priority":-Infinity}', (400, "bad-request")),
    "1e400": (b'{"dataset":"emoji","dar":{"weight":1e400}}', (400, "bad-request")),
    "5000 digits": (b'{"dataset":"emoji","priority":' + b"9" * 5000 + b"}", (400, "bad-request")),
    "4000 digits": (b'{"dataset":"emoji","priority":' + b"9" * 4000 + b"}", (422, "priority")),
    "190,000 digits and a point": (
        b'{"dataset":"emoji","priority":1' + b"0" * 190_000 + b".0}",
        (400, "bad-request"),
    ),
    "an exponent of 190,000 digits": (
        b'{"dataset":"emoji","priority":1e' + b"9" * 190_000 + b"}",
        (400, "bad-request"),
    ),
    "10**30 epochs": (spec(train={"epochs": 10**30}), (422, "train.epochs")),
    "1e30 epochs": (spec(train={"epochs": 1e30}), (422, "train.epochs")),
    "a seed of 65 bits": (spec(train={"seed": 2**64}), (422, "train.seed")),
    "10**9 workers": (spec(resources={"workers": 10**9}), (422, "resources.workers")),
    "a negative learning rate": (
        spec(train={"optimizer": {"lr": -1}}),
        (422, "train.optimizer.lr"),
    ),
    # Depth and size.
    "40 levels": (nested(40), (422, "dataset")),
    "60 levels": (nested(60), (400, "bad-request")),
    "900 levels": (nested(900), (400, "bad-request")),
    "90,000 levels": (nested(90_000), (400, "bad-request")),
    "1500 unknown keys": (spec(**{f"k{n}": 1 for n in range(1500)}), (422, "k0")),
    "15,000 unknown keys": (spec(**{f"k{n}": 1 for n in range(15_000)}), (400, "bad-request")),
    "a key of 190,000 letters": (spec(**{"x" * 190_000: 1}), (422, SHORTENED)),
    "a tag's key of 190,000 letters": (spec(tags={"x" * 190_000: "a"}), (422, f"tags.{SHORTENED}")),
    "60 keys of 3000 letters": (
        spec(**{"x" * 3000 + str(n): 1 for n in range(60)}),
        (422, SHORTENED),
    ),
    "1000 tags": (spec(tags={str(n): "x" for n in range(1000)}), (422, "tags")),
    "30,000 wrong entries": (
        spec(evaluate={"retrieval": ["x"] * 30_000}),
        (422, "evaluate.retrieval.0"),
    ),
    "30,000 entries": (spec(evaluate={"retrieval": [1] * 30_000}), (422, "evaluate.retrieval")),
    "a batch of 400 digits": (spec(train={"batch_size": 10**400}), (422, "train.batch_size")),
    "1e110 triplets": (
        spec(method={"name": "triplet"}, train={"batch_size": 10**110}),
        (422, "train.batch_size"),
    ),
    "weights 40,000 folders down": (
        spec(backbone={"pretrained": "/" + "a/" * 40_000}),
        (422, "backbone.pretrained"),
    ),
    "a name of 10,000 letters": (spec(name="x" * 10_000), (422, "name")),
    "a body beyond the limit": (spec(name="x" * 200_000), (413, "body-too-large")),
    # Text that a database cannot store or that controls a terminal.
    "an escaped NUL": (b'{"dataset":"emoji","name":"a\\u0000b"}', (422, "name")),
    "a NUL byte": (b'{"dataset":"a\x00b"}', (422, "body")),
    "a NUL below a key of 190,000 letters": (
        b'{"' + b"x" * 190_000 + b'":"\\u0000"}',
        (422, SHORTENED),
    ),
    "a NUL below a key of two lines": (b'{"a\\nb":"\\u0000"}', (422, "a\\nb")),
    "a NUL in a key": (b'{"dataset":"emoji","tags":{"a\\u0000":"b"}}', (422, "a key")),
    "half a surrogate pair": (b'{"dataset":"emoji","name":"\\ud800"}', (422, "name")),
    "an escape sequence": (spec(name="a\x1b[31m"), (422, "name")),
    "a line break": (spec(name="a\nb"), (422, "name")),
    "a path as a name": (spec(name="../../etc/passwd"), (422, "name")),
    # Look-alike letters.
    "a Cyrillic letter in a data set's name": (spec(dataset="еmoji"), (422, "dataset")),
    "a Cyrillic letter in a method": (spec(method={"name": "sіmclr"}), (422, "method.name")),
    "full-width letters": (spec(method={"name": "ｓｉｍｃｌｒ"}), (422, "method.name")),
    # Names may be right-to-left text; the command line strips the control marks.
    "letters from right to left": (spec(name="a\u202egpj.exe"), (201, "")),
    # Bodies that are not a JSON object.
    "nothing": (b"", (422, "body")),
    "null": (b"null", (422, "(the whole spec)")),
    "a list": (b"[]", (422, "(the whole spec)")),
    "a text": (b'"emoji"', (422, "(the whole spec)")),
    "half of it": (spec()[:-3], (422, "body")),
    "two of them": (spec() + spec(), (422, "body")),
    "a comment": (b'{"dataset":"emoji"/* or not */}', (422, "body")),
    "a key twice": (b'{"dataset":"emoji","dataset":"other"}', (400, "bad-request")),
    "a key twice, deeper": (
        b'{"dataset":"emoji","train":{"epochs":1,"epochs":2}}',
        (400, "bad-request"),
    ),
    "UTF-16": (spec().decode().encode("utf-16"), (400, "bad-request")),
    "Latin-1": (b'{"dataset":"\xe9moji"}', (400, "bad-request")),
    "an overlong slash": (b'{"dataset":"\xc0\xaf"}', (400, "bad-request")),
    "a byte order mark": (b"\xef\xbb\xbf" + spec(), (422, "body")),
    # Keys and strings with a meaning in other systems.
    "__proto__": (b'{"dataset":"emoji","__proto__":{"admin":true}}', (422, "__proto__")),
    "SQL": (spec(dataset="emoji'; DROP TABLE jobs; --"), (422, "dataset")),
    "another's id": (spec(id="job_" + "0" * 26), (422, "id")),
    "a tenant": (spec(tenant="other"), (422, "tenant")),
    "a status": (spec(status="succeeded"), (422, "status")),
    "a module as a backbone": (spec(backbone={"name": "os.system"}), (422, "backbone.name")),
    "a hub's backbone": (spec(backbone={"name": "hf-hub:evil/model"}), (422, "backbone.name")),
    "weights of the network": (
        spec(backbone={"name": "resnet18", "pretrained": "http://169.254.169.254/x.pth"}),
        (422, "backbone.pretrained"),
    ),
}


def test_submit_answers_hostile_bodies_as_listed(api: Api) -> None:
    api.dataset()
    sent = {
        name: outcome(api.client.post("/v1/jobs", content=body, headers=JSON))
        for name, (body, _) in BODIES.items()
    }
    assert sent == {name: expected for name, (_, expected) in BODIES.items()}
    with api.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


# Headers of POST /v1/jobs/validate with a good body.
HEADERS: dict[str, tuple[Mapping[str, Any], tuple[int, str]]] = {
    **{
        kind: ({"Content-Type": kind}, (415, "unsupported-media-type"))
        for kind in (
            *("", "text/plain", "application/xml", "application/jsonp"),
            *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        )
    },
    "capital letters": ({"Content-Type": "APPLICATION/JSON"}, (200, "")),
    "a kind of JSON": ({"Content-Type": "application/merge-patch+json"}, (200, "")),
    "gzip": (JSON | {"Content-Encoding": "gzip"}, (415, "unsupported-media-type")),
    "a negative length": (JSON | {"Content-Length": "-5"}, (400, "bad-request")),
    "a length in words": (JSON | {"Content-Length": "two"}, (400, "bad-request")),
    "a length of 30 digits": (JSON | {"Content-Length": "9" * 30}, (413, "body-too-large")),
    "another method inside": (JSON | {"X-HTTP-Method-Override": "DELETE"}, (200, "")),
    "another address inside": (JSON | {"X-Original-URL": "/v1/tokens"}, (200, "")),
    "another host": (JSON | {"Host": "evil.example"}, (200, "")),
    "another origin": (JSON | {"Origin": "https://evil.example"}, (200, "")),
}


def test_validate_answers_hostile_headers_as_listed(api: Api) -> None:
    api.dataset()
    sent = {}
    for name, (headers, _) in HEADERS.items():
        answer = api.client.post("/v1/jobs/validate", content=spec(), headers=headers)
        sent[name] = outcome(answer)
        assert "access-control-allow-origin" not in answer.headers
    assert sent == {name: expected for name, (_, expected) in HEADERS.items()}
    zipped = gzip.compress(spec())
    # A compressed body without Content-Encoding is not decompressed.
    answer = api.client.post("/v1/jobs/validate", content=zipped, headers=JSON)
    assert outcome(answer) == (400, "bad-request")

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    answer = api.client.post("/v1/jobs/validate", content=endless(), headers=JSON)
    assert outcome(answer) == (413, "body-too-large")


IDEMPOTENCY_KEYS: dict[str | bytes, tuple[int, str]] = {
    "": (422, "Idempotency-Key"),
    "a b": (422, "Idempotency-Key"),
    "a\tb": (422, "Idempotency-Key"),
    "x" * 255: (201, ""),
    "x" * 256: (422, "Idempotency-Key"),
    "ключ".encode(): (422, "Idempotency-Key"),
    b"\xff": (422, "Idempotency-Key"),
    "\x7f": (422, "Idempotency-Key"),
    "../../etc": (201, ""),
    "';DROP/**/TABLE/**/jobs;--": (201, ""),
}


def test_submit_answers_hostile_idempotency_keys_as_listed(api: Api) -> None:
    api.dataset()
    sent = {
        key: outcome(
            api.client.post(
                "/v1/jobs", content=spec(), headers=with_raw(JSON, "Idempotency-Key", key)
            )
        )
        for key in IDEMPOTENCY_KEYS
    }
    assert sent == IDEMPOTENCY_KEYS


# Paths below /v1; {job} is the id of a job.
ADDRESSES: dict[str, tuple[int, str]] = {
    **dict.fromkeys(
        (
            *(f"/jobs/{id}" for id in ("%00", "x" * 5000, "%ff%fe", "{upper}", "{lookalike}")),
            *(f"/jobs/{{job}}{more}" for more in ("%20", "%0a", "%00", "'%20OR%20'1'='1", "/")),
            *("//jobs", "/jobs;x=1", "/jobs/%2e%2e/tokens", "/jobs/..%2ftokens"),
            "/jobs/{job}/artifacts/a%0d%0aSet-Cookie:x",
            "/jobs/{job}/artifacts/driver.log",
            "/checkpoints/ckpt_00000000000000000000000000/files/..%2f..%2fdasl.db",
            "/jobs/{job}/logs?attempt=2",
        ),
        (404, "not-found"),
    ),
    **{
        f"/jobs/{{job}}/artifacts/{name}": (422, "name")
        for name in (
            *("..%2f..%2f..%2fdasl.db", "%2e%2e", "/etc/passwd", "a%00.png", "C:%5Cboot.ini"),
            *(".hidden", "a" * 300),
        )
    },
    # Queries.
    **{
        f"/{path}?{name}={value}": (422, name)
        for path, name, values in (
            ("jobs", "limit", ("0", "99999999999999999999", "1e3", "0x10", "１", "true")),
            ("jobs", "after", ("%00", "job_'%20OR%201=1--", "x" * 5000)),
            ("jobs", "method", ("simclr%00",)),
            ("jobs", "tag", ("a%00:b", ":", "a" * 200)),
            ("jobs/{job}/events", "after", ("-1", "9223372036854775808")),
            ("jobs/{job}/events", "limit", ("1001",)),
            ("jobs/{job}/metrics", "from_step", ("9223372036854775808",)),
            ("jobs/{job}/metrics", "max_points", ("1", "10000000")),
            ("jobs/{job}/logs", "tail", ("100001",)),
            ("jobs/{job}/logs", "attempt", ("0", "2147483648")),
            ("datasets", "name", ("%00",)),
            ("audit", "since", ("9999-12-31T23:59:59-23:00",)),
            ("audit", "token", ("x" * 5000,)),
        )
        for value in values
    },
    "/jobs?status=%00": (422, "status.0"),
    "/jobs?" + "status=no&" * 501: (422, "status.0"),
    "/jobs/{job}/metrics?name=%00": (422, "name.0"),
    "/jobs/{job}/metrics?" + "name=a&" * 101: (422, "name"),
    **dict.fromkeys(
        (
            "/jobs?" + "status=queued&" * 501,
            *('/jobs?tag=a"b:c', "/jobs?tag=$.x[0]:y", "/jobs?nonsense=1"),
            "/jobs?tag='||(select%20hash%20from%20tokens)||':y",
            "/jobs/{job}/metrics?from_step=9223372036854775807",
        ),
        (200, ""),
    ),
}


@pytest.fixture
def worker(api: Api) -> Worker:
    return api.running()


def test_api_answers_hostile_urls_as_listed(api: Api, worker: Worker) -> None:
    job = worker.job_id
    known = {"job": job, "upper": job.upper(), "lookalike": job.replace("o", "о")}
    admin = api.token("admin")
    sent = {}
    for address in ADDRESSES:
        path = "/v1" + address
        for name, value in known.items():
            path = path.replace(f"{{{name}}}", value)
        answer = api.client.get(path, headers=admin)
        sent[address] = outcome(answer)
        assert "set-cookie" not in answer.headers
    assert sent == ADDRESSES
    for method in ("PUT", "TRACE", "OPTIONS", "PROPFIND", "FOO"):
        answer = api.client.request(method, "/v1/jobs", headers=admin)
        assert outcome(answer) == (405, "method-not-allowed"), method


# Ids in /worker/v1/runs/{id}; {run} is the id of a run that has another token.
RUN_IDS = [
    *("%00", "job_x%00-1", "{run}", "{run}%00", "{run}%0a", "{run}%ff", "%ED%B2%80", "{job}"),
    *("{job}-1", "{upper}-1", "{lookalike}-1", "{job}-2147483647", "{job}-2147483648"),
    *("{job}-01", "{job}-%2b1", "{job}-１", "{job}-1-1", "{run}-1", "{job}-1-%00"),
    *("{job}-1-00000000", "{job}-1-0000000G", "{run}'%20OR%20'1'='1"),
    *("ds_00000000000000000000000000-1", "ckpt_00000000000000000000000000-1"),
]
RUN_IDS += ["x" * 5000, "{job}-" + "9" * 5000]


def test_worker_api_refuses_hostile_run_ids(api: Api, worker: Worker) -> None:
    # It would refuse further failures otherwise.
    settings = api.settings.model_copy(update={"auth_failures_per_minute": 10_000})
    known = {
        "run": worker.run_id,
        "job": worker.job_id,
        "upper": worker.job_id.upper(),
        "lookalike": worker.job_id.replace("o", "о"),
    }
    with TestClient(create_app(settings, api.database)) as client:
        for token in ("x", api.start(api.submit()["id"]).token):
            headers = {"Authorization": f"Bearer {token}"}
            answers = {
                id: outcome(
                    client.post(f"/worker/v1/runs/{id.format(**known)}/start", headers=headers)
                )
                for id in RUN_IDS
            }
            assert answers == dict.fromkeys(answers, (401, "unauthenticated"))


NOT_AN_ID = (422, "Last-Event-ID")
EVENT_IDS: dict[str | bytes, tuple[int, str]] = {
    **dict.fromkeys(("0", "2147483647"), (200, "")),
    **dict.fromkeys((str(2**31), str(2**53), str(2**53 + 1), str(2**64)), NOT_AN_ID),
    **dict.fromkeys(
        ("9" * 40, "9" * 5000, "-1", "1e3", "0x5", "1:2", b"\xb2", "１".encode()), NOT_AN_ID
    ),
}
LOG_IDS: dict[str | bytes, tuple[int, str]] = {
    **dict.fromkeys(("1:0", "1:9007199254740992", "2147483647:0"), (200, "")),
    **dict.fromkeys(("9007199254740992:0", "1", ":", "1:-1", "1:2:3", "../1:0"), NOT_AN_ID),
    b"\xb2:\xb2": NOT_AN_ID,
}


def test_streams_answer_hostile_last_event_ids_as_listed(api: Api, worker: Worker) -> None:
    api.context.closing.set()  # streams end immediately
    for kind, ids in (("events", EVENT_IDS), ("logs", LOG_IDS)):
        sent = {}
        for id in ids:
            headers = with_raw({"Accept": "text/event-stream"}, "Last-Event-ID", id)
            answer = api.client.get(f"/v1/jobs/{worker.job_id}/{kind}", headers=headers)
            sent[id] = outcome(answer)
        assert sent == ids


RANGES: dict[str | bytes, tuple[int, int]] = {
    "bytes=0-1": (206, 2),
    "bytes=-4": (206, 4),
    "bytes=-99999999999999999999": (206, 10),
    "bytes=8-99999999999999999999999": (206, 2),
    "bytes=10-": (416, 0),
    "bytes=99999999999999999999999-": (416, 0),
    "bytes=-0": (416, 0),
    # Multiple ranges could repeat the file many times, so the whole file is sent once.
    "bytes=" + ",".join(["0-9"] * 1000): (200, 10),
    "bytes=0-1,1-2": (200, 10),
    "bytes=5-2": (200, 10),
    "bytes=--1": (200, 10),
    "bytes=a-b": (200, 10),
    "bytes=0x0-0x5": (200, 10),
    "items=0-1": (200, 10),
    "bytes": (200, 10),
    b"bytes=\xb2-\xb3": (200, 10),
}


def test_artifact_answers_hostile_ranges_as_listed(api: Api, worker: Worker) -> None:
    file = Path(worker.uri.removeprefix("file://")) / "a.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0123456789")
    worker.post("artifacts", name="a.bin", uri=f"{worker.uri}/a.bin", size=10, sha256=SHA)
    sent = {}
    for value in RANGES:
        answer = api.client.get(
            f"/v1/jobs/{worker.job_id}/artifacts/a.bin", headers=with_raw({}, "Range", value)
        )
        sent[value] = answer.status_code, 0 if answer.status_code == 416 else len(answer.content)
    assert sent == RANGES


def artifact(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "artifacts", {"name": "a", "uri": "{uri}/a", "size": 1, "sha256": SHA, **fields}


def checkpoint(uri: str = "{uri}/a", name: str = "a") -> tuple[str, dict[str, Any]]:
    files = [{"name": name, "size": 1, "sha256": SHA}]
    return "checkpoints", {"step": 1, "epoch": 1, "uri": uri, "files": files}


def points(values: dict[str, Any], *, step: int = 1, times: int = 1) -> tuple[str, dict[str, Any]]:
    return "metrics", {"points": [{"step": step, "time": 1.0, "values": values}] * times}


# Places that are not below the attempt's folder, which is `{uri}`, and names that would lead out of it.
PLACES = (
    *("file:///etc/passwd", "{uri}", "{uri}/../../2/x", "{uri}0/a", "{uri}/a//b", "{uri}/a\\b"),
    *("s3://b/x", "http://169.254.169.254/", "{uri}/x::nosuch", "{uri}/x::memory"),
)
NAMES = (*("../x", "/etc/passwd", "a/b", "a\\b", "..", ".hidden", "", "a\0", "a b"), "x" * 201)
# Reports of a worker.
REPORTS: dict[str, tuple[tuple[str, dict[str, Any]], tuple[int, str]]] = {
    **{f"an artifact in {place}": (artifact(uri=place), (422, "uri")) for place in PLACES},
    **{f"a checkpoint in {place}": (checkpoint(place), (422, "uri")) for place in PLACES},
    **{f"an artifact {name!r}": (artifact(name=name), (422, "name")) for name in NAMES},
    **{
        f"a file {name!r} of a checkpoint": (checkpoint(name=name), (422, "files.0.name"))
        for name in NAMES
    },
    "a file that is larger than any": (artifact(size=2**63), (422, "size")),
    "a content type with a header in it": (
        artifact(content_type="a/b\r\nX: y"),
        (422, "content_type"),
    ),
    "a key of 190,000 letters": (("heartbeat", {"x" * 190_000: 1}), (422, SHORTENED)),
    "a figure's name of 190,000 letters": (
        ("heartbeat", {"progress": {"x" * 190_000: 1}}),
        (422, f"progress.{SHORTENED}"),
    ),
    "an unknown key": (("heartbeat", {"speed": 3}), (422, "speed")),
    "a series' name of 190,000 letters": (
        points({"x" * 190_000: 1.0}),
        (422, f"points.0.values.{SHORTENED}"),
    ),
    "a step of 64 bits": (points({"loss": 1.0}, step=2**63), (422, "points.0.step")),
    "a step below 0": (points({"loss": 1.0}, step=-1), (422, "points.0.step")),
    "the last step there is": (points({"loss": 1.0}, step=2**63 - 1), (204, "")),
    "one point 3000 times": (points({"l": 1.0}, times=3000), (204, "")),
    "201 series": (points({f"l{n}": 1.0 for n in range(201)}), (422, "points.0.values")),
    "a series without a name": (points({"": 1.0}), (422, "points.0.values.")),
    "no value": (points({"loss": None}), (422, "points.0.values.loss")),
    "a value in quotes": (points({"loss": "1"}), (422, "points.0.values.loss")),
    "an event of the service's own": (("events", {"type": "status"}), (422, "type")),
    "an event of two words": (("events", {"type": "Two words"}), (422, "type")),
    "a message of 20,001 letters": (
        ("events", {"type": "note", "message": "x" * 20_001}),
        (422, "message"),
    ),
    "an evaluation of something else": (
        ("evaluations", {"step": 1, "epoch": 1, "subject": "x", "metrics": {}}),
        (422, "subject"),
    ),
    "an outcome of its own": (("finish", {"outcome": "queued"}), (422, "outcome")),
    "an outcome of the service's own": (("finish", {"outcome": "lost"}), (422, "outcome")),
}


def test_worker_api_answers_hostile_reports_as_listed(worker: Worker) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return value.replace("{uri}", worker.uri) if isinstance(value, str) else value

    sent = {
        name: outcome(worker.post(action, **filled(body)))
        for name, ((action, body), _) in REPORTS.items()
    }
    assert sent == {name: expected for name, (_, expected) in REPORTS.items()}


CLOSE = b"Host: x\r\nConnection: close\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\n" + CLOSE
# Bytes sent over a connection, and the status of the answer.
BYTES: dict[str, tuple[bytes, int]] = {
    "no host": (b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    "two hosts": (b"GET /livez HTTP/1.1\r\nHost: a\r\n" + CLOSE + b"\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),
    "HTTP/0.9": (b"GET /livez\r\n\r\n", 400),
    "a NUL in a header": (b"GET /livez HTTP/1.1\r\n" + CLOSE + b"X-A: a\0b\r\n\r\n", 400),
    "a header of 200 kB": (
        b"GET /livez HTTP/1.1\r\n" + CLOSE + b"X-A: " + b"a" * 200_000 + b"\r\n\r\n",
        400,
    ),
    "20,000 headers": (b"GET /livez HTTP/1.1\r\n" + CLOSE + b"X-A: a\r\n" * 20_000 + b"\r\n", 400),
    "an address of 200 kB": (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + CLOSE + b"\r\n", 400),
    "a space in a header's name": (b"GET /livez HTTP/1.1\r\n" + CLOSE + b"X A: b\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400),
    "a negative length": (POST + b"Content-Length: -5\r\n\r\n", 400),
    "a length of 10 GB": (POST + b"Content-Length: 10000000000\r\n\r\n", 413),
    "a coding of codings": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "a broken chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", 400),
    "a length, and chunks with a request behind them": (
        POST
        + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        401,
    ),
    "a whole address": (b"GET http://evil.example/livez HTTP/1.1\r\n" + CLOSE + b"\r\n", 404),
    "a tunnel": (b"CONNECT evil.example:443 HTTP/1.1\r\n" + CLOSE + b"\r\n", 404),
    "a web socket": (
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        401,
    ),
    "two tokens": (
        b"GET /v1/jobs HTTP/1.1\r\n" + CLOSE + b"Authorization: Bearer a\r\n" * 2 + b"\r\n",
        401,
    ),
    "bytes beyond ASCII in an address": (b"GET /\xc3\xa9 HTTP/1.1\r\n" + CLOSE + b"\r\n", 400),
}


def test_server_answers_hostile_bytes_as_listed(tmp_path: Path, migrated_sqlite: Path) -> None:
    (tmp_path / "dasl.db").write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(home=tmp_path)
    database = Database(settings.database_url)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = ApiThread(settings, database, listener)
    thread.start()

    def status(sent: bytes) -> int:
        with socket.create_connection(listener.getsockname(), timeout=60) as connection:
            answer = b""
            try:
                connection.sendall(sent)
                while block := connection.recv(65536):
                    answer += block
            except ConnectionError:
                pass  # The server answered and closed before it had read everything.
        # Exactly one answer: the bytes are one request, or an invalid one.
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        return int(answer.split()[1])

    try:
        assert {name: status(sent) for name, (sent, _) in BYTES.items()} == {
            name: expected for name, (_, expected) in BYTES.items()
        }
        # Half a request of a client that disconnects does not block others.
        with socket.create_connection(listener.getsockname(), timeout=60) as connection:
            connection.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        assert status(b"GET /livez HTTP/1.1\r\n" + CLOSE + b"\r\n") == 200
    finally:
        thread.stop()
        listener.close()
        database.dispose()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"A" * 20_000: [0] * 3000}, id="siblings below a long key"),
        pytest.param({"a": [0] * 60_000}, id="many values"),
        pytest.param({f"k{n}": 0 for n in range(15_000)}, id="many unknown keys"),
        pytest.param(
            {"dataset": "emoji", "evaluate": {"retrieval": ["x"] * 30_000}}, id="many wrong entries"
        ),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["without token", "with read token"])
def test_request_memory_is_bounded_by_body_size(
    api: Api, known: bool, body: dict[str, Any]
) -> None:
    """The body is read before the token is checked, so the bound holds without a token."""
    authorization = api.token("read")["Authorization"] if known else ""
    content = json.dumps(body).encode()
    tracemalloc.start()
    try:
        answer = api.client.post(
            "/v1/jobs/validate", content=content, headers={**JSON, "Authorization": authorization}
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome(answer)[0] in ((400, 422) if known else (400, 401))
    assert peak < 20 * len(content) + 2_000_000
