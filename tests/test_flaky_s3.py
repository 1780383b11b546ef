"""The server of the tests does fail as told, and only so."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .flaky_s3 import Answer, CutAnswer, Fault, FlakyS3, LoseAnswer, Request, Reset


@pytest.fixture
def client(server: FlakyS3) -> Iterator[Any]:
    """A client that tries once."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()
    server.heal()


def content(client: Any, key: str) -> bytes:
    body: bytes = client.get_object(Bucket="bucket", Key=key)["Body"].read()
    return body


def test_server_without_faults_stores_and_counts(server: FlakyS3, client: Any) -> None:
    before = len(server.requests)
    client.put_object(Bucket="bucket", Key="a/x", Body=b"12345")
    assert content(client, "a/x") == b"12345"
    assert client.head_object(Bucket="bucket", Key="a/x")["ContentLength"] == 5
    assert server.requests[before:] == [
        Request("PUT", "/bucket/a/x"),
        Request("GET", "/bucket/a/x"),
        Request("HEAD", "/bucket/a/x"),
    ]


def test_stop_refuses_until_start_and_keeps_what_was_stored(server: FlakyS3, client: Any) -> None:
    client.put_object(Bucket="bucket", Key="kept", Body=b"1")
    server.stop()
    with pytest.raises(BotoCoreError, match="Could not connect"):
        content(client, "kept")
    server.start()
    assert content(client, "kept") == b"1"


def test_stop_cuts_a_connection_that_is_open(server: FlakyS3) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /bucket HTTP/1.1\r\nHost: s3\r\n")
        server.stop()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    server.start()


@pytest.mark.parametrize(
    ("fault", "stored"),
    [
        pytest.param(Reset(), False, id="reset"),
        pytest.param(LoseAnswer(), True, id="lose-answer"),
        pytest.param(Answer(503, "SlowDown"), False, id="answer"),
    ],
)
def test_fail_does_or_does_not_do_what_was_asked(
    server: FlakyS3, client: Any, fault: Fault, stored: bool
) -> None:
    key = type(fault).__name__
    server.fail(fault, times=1, method="PUT")
    with pytest.raises((BotoCoreError, ClientError)):
        client.put_object(Bucket="bucket", Key=key, Body=b"1")
    found = client.list_objects_v2(Bucket="bucket", Prefix=key)
    assert found["KeyCount"] == int(stored)
    client.put_object(Bucket="bucket", Key=key, Body=b"2")
    assert content(client, key) == b"2"


def test_cut_answer_breaks_off_in_the_middle(server: FlakyS3, client: Any) -> None:
    client.put_object(Bucket="bucket", Key="long", Body=b"x" * 100_000)
    server.fail(CutAnswer(), times=1, method="GET")
    body = client.get_object(Bucket="bucket", Key="long")["Body"]
    with pytest.raises(Exception, match=r"(?i)reset|broken|incomplete"):
        body.read()
    assert len(content(client, "long")) == 100_000


def test_fail_without_times_lasts_until_heal(server: FlakyS3, client: Any) -> None:
    server.fail(Answer(403, "AccessDenied"))
    for _ in range(3):
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket="bucket", Key="x", Body=b"1")
    server.heal()
    client.put_object(Bucket="bucket", Key="x", Body=b"1")
