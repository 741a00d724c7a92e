"""Draining nodes over the API."""

import pytest

from service.scheduling.nodes import Node
from tests.support.api_under_test import Api, refused, save_nodes


@pytest.fixture(autouse=True)
def as_administrator(api: Api) -> None:
    api.client.headers.update(api.token("submit", "operator"))


@pytest.mark.dialect
def test_drained_node_is_shown_and_survives_a_restart_of_ray(api: Api) -> None:
    nodes = [Node(f"id-{n}", f"10.0.0.{n}", 4, 0, 0, 0, name=f"name-{n}") for n in (1, 2)]
    save_nodes(api, nodes)
    body = {"node": "id-1", "save": False, "reason": "new disk"}
    answer = api.client.post("/v1/cluster/drain", json=body)
    assert answer.status_code == 200, answer.text
    (drain,) = answer.json()["data"]
    assert (drain["node"], drain["save"], drain["reason"]) == ("10.0.0.1", False, "new disk")
    save_nodes(api, [Node("id-3", "10.0.0.1", 4, 0, 0, 0, name="name-1"), nodes[1]])
    cluster = api.client.get("/v1/cluster").json()
    assert [node["drained"] for node in cluster["nodes"]] == [True, False]
    assert cluster["drains"] == [drain]
    reader = api.client.get("/v1/cluster", headers=api.token("read")).json()
    assert [node["drained"] for node in reader["nodes"]] == [True, False]
    assert reader["drains"] == []
    assert {node["name"] for node in reader["nodes"]} == {""}

    assert api.client.post("/v1/cluster/undrain", json={"node": "name-1"}).json() == {"data": []}
    assert api.client.post("/v1/cluster/undrain", json={"node": "name-1"}).status_code == 200
    audit = api.client.get("/v1/audit").json()["data"]
    assert "/v1/cluster/drain" in [entry["path"] for entry in audit]


def test_whole_cluster_is_drained_while_ray_is_away(api: Api) -> None:
    for reason in ("first", "second"):
        answer = api.client.post("/v1/cluster/drain", json={"reason": reason})
        assert answer.status_code == 200, answer.text
    (drain,) = api.client.get("/v1/cluster").json()["drains"]
    assert (drain["node"], drain["save"], drain["reason"]) == (None, True, "second")
    save_nodes(api, [Node("a", "10.0.0.1", 4, 0, 0, 0)])
    assert api.client.get("/v1/cluster").json()["nodes"][0]["drained"]
    api.client.post("/v1/cluster/undrain", json={})
    assert not api.client.get("/v1/cluster").json()["nodes"][0]["drained"]


@pytest.mark.parametrize("bad", [{"node": ""}, {"node": 3}, {"save": None}, {"nodes": "a"}, []])
def test_bad_request_to_drain_is_refused(api: Api, bad: object) -> None:
    refused(api.client.post("/v1/cluster/drain", json=bad), 422)


def test_only_administrators_drain(api: Api) -> None:
    for action in ("drain", "undrain"):
        answer = api.client.post(f"/v1/cluster/{action}", json={}, headers=api.token("submit"))
        refused(answer, 403)


def test_attempt_is_told_which_nodes_get_no_rank(api: Api) -> None:
    api.dataset()
    nodes = [Node(f"id-{n}", f"10.0.0.{n}", 4, 0, 0, 0) for n in (1, 2, 3)]
    save_nodes(api, nodes)
    api.client.post("/v1/cluster/drain", json={"node": "10.0.0.3"})
    worker = api.start(api.submit(resources={"exclude_nodes": ["10.0.0.2"]})["id"])
    assert worker.post("start").json()["excluded_nodes"] == ["id-2", "id-3"]


def test_attempt_is_told_which_nodes_it_avoids(api: Api) -> None:
    api.dataset()
    save_nodes(api, [Node(f"id-{n}", f"10.0.0.{n}", 4, 0, 0, 0) for n in (1, 2)])
    worker = api.start(api.submit()["id"], avoided=["id-1"])
    assert worker.post("start").json()["excluded_nodes"] == ["id-1"]
    assert worker.post("start").json()["excluded_nodes"] == ["id-1"]
