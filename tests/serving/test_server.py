"""The service as a process, and requests that a schema makes up."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from rankgrad.serving import Limits, create_app


@pytest.fixture(scope="module")
def run(fitted, tmp_path_factory):
    place = tmp_path_factory.mktemp("served") / "first"
    fitted["in_list"].save(place)
    return place


def command(*arguments):
    return [sys.executable, "-m", "rankgrad", "serve", *map(str, arguments)]


def test_it_answers_what_it_has_taken_and_stops(run, lists):
    process = subprocess.Popen(
        command(run, f"again={run}", "--port", 0), stdout=subprocess.PIPE, text=True
    )
    try:
        said = process.stdout.readline()
        assert said.startswith("serving first, again at http://127.0.0.1:")
        address = said.split()[-1]
        port = int(address.rpartition(":")[2])
        with urllib.request.urlopen(f"{address}/ready") as answer:
            assert answer.status == 200
        rows = lists.features[:9].tolist()
        content = json.dumps({"lists": [{"items": rows}]}).encode()
        with socket.create_connection(("127.0.0.1", port)) as half_sent:
            head = f"POST /rank HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n\r\n"
            half_sent.sendall(head.encode() + content[:20])
            time.sleep(0.3)
            threading.Timer(0.5, half_sent.sendall, [content[20:]]).start()
            process.send_signal(signal.SIGTERM)
            answer = b""
            while part := half_sent.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200") and b'"order"' in answer
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.filterwarnings("ignore")  # of packages that schemathesis uses
def test_requests_that_a_schema_makes_up(served):
    app = create_app(served, Limits(body=10_000, lists=5, items=20))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.response_schema_conformance,
    ]
    operation = schema["/rank"]["POST"]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case):
        case.call_and_validate(checks=checks)

    check()
