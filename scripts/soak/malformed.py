"""Sends malformed requests and loses connections."""
import http.client
import json

from soak.server import Wrong

GONE = (OSError, http.client.HTTPException)


def malformed_requests(rng):
    """Returns the endpoint, the body, the headers and the right statuses of each malformed request."""
    chat, json_type = "/v1/chat/completions", {"Content-Type": "application/json"}
    good = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    text = json.dumps(good).encode()
    return [
        (chat, text[:rng.randrange(len(text))], json_type, {400}),
        (chat, bytes(rng.randrange(256) for _ in range(200)), json_type, {400}),
        (chat, b"[" * 100000, json_type, {400}),
        (chat, b" " * (3 << 20), json_type, {413}),
        (chat, text, {"Content-Type": "text/plain"}, {415}),
        (chat, json.dumps({**good, "max_tokens": -rng.randint(3, 9)}).encode(), json_type, {400}),
        (chat, json.dumps({**good, "temperature": "hot"}).encode(), json_type, {400}),
        (chat, json.dumps({**good, "n": 1000}).encode(), json_type, {400}),
        (chat, json.dumps({**good, "session": "../../etc/passwd"}).encode(), json_type, {400}),
        ("/v1/completions", json.dumps({"prompt": "word " * 5000}).encode(), json_type, {400}),
        ("/v1/completions", json.dumps({"prompt": [1 << 30]}).encode(), json_type, {400}),
        ("/v1/nothing", text, json_type, {404}),
        ("/v1/sessions/none/restore", b"{}", json_type, {404}),
        ("/v1/sessions/a%2Fb/save", b"{}", json_type, {400, 404}),
    ]


def send_malformed_request(server, path, body, headers, statuses):
    try:
        status, answer = server.ask("POST", path, body, headers)
    except GONE:
        # The server closes the connection without reading a body that is too large.
        if statuses != {413}:
            raise
        return
    if status not in statuses or "error" not in json.loads(answer):
        raise Wrong(f"{path} {headers} {body[:200]}: {status} {answer[:200]}")


def send_half_a_request(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.connect()
    connection.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
    connection.close()
