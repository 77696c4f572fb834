"""The gate in front of a server, without one."""

import asyncio
import json

from looped_actor.serving.gate import Gate


def asked(gate, method="POST", path="/v2/models/any/infer", **headers):
    """What is sent to one who asks."""
    sent = []

    async def send(message):
        sent.append(message)

    async def answered():
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await gate({"type": "http", "method": method, "path": path, "headers": raw}, None, send)
        return sent

    return answered()


def test_one_more_than_fits_is_refused_and_a_place_is_free_again():
    async def scene():
        may_end = asyncio.Event()

        async def slow(scope, receive, send):
            if scope["method"] == "POST":
                await may_end.wait()
            await send("answered")

        gate = Gate(slow, 2)
        inside = [asyncio.create_task(asked(gate)) for _ in range(2)]
        await asyncio.sleep(0)
        start, body = await asked(gate)
        assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
        assert json.loads(body["body"]) == {"error": "too busy: 2 requests are being answered"}
        assert await asked(gate, "GET") == ["answered"]  # whoever asks how it stands is told
        may_end.set()
        assert await asyncio.gather(*inside) == [["answered"]] * 2
        for _ in range(3):
            assert await asked(gate) == ["answered"]

    asyncio.run(scene())


def test_strangers_are_turned_away_and_take_nobody_s_place():
    async def scene():
        may_end = asyncio.Event()

        async def slow(scope, receive, send):
            await may_end.wait()
            await send("answered")

        gate = Gate(slow, 1, "secret")
        for wrong in ({}, {"authorization": "Bearer other"}, {"authorization": "secret"}):
            start, body = await asked(gate, **wrong)
            assert start["status"] == 401
            assert json.loads(body["body"]) == {"error": "a bearer token is asked for"}
        known = asyncio.create_task(asked(gate, authorization="Bearer secret"))
        await asyncio.sleep(0)
        assert (await asked(gate))[0]["status"] == 401
        assert (await asked(gate, authorization="Bearer secret"))[0]["status"] == 503
        may_end.set()
        assert await known == ["answered"]

    asyncio.run(scene())


def test_a_failure_inside_frees_its_place():
    async def fails(scope, receive, send):
        raise RuntimeError("inside")

    async def scene():
        gate, told = Gate(fails, 1), []
        for _ in range(3):
            try:
                await asked(gate)
            except RuntimeError as error:
                told.append(str(error))
        assert told == ["inside"] * 3

    asyncio.run(scene())


def test_paths_that_nobody_serves_are_answered_in_json():
    """Ray Serve itself answers them in plain text."""

    async def app(scope, receive, send):
        await send(scope["path"])

    async def scene():
        gate = Gate(app, 1, "secret")
        for path in ("/v2", "/v2/", "/v2/nothing", "/-/healthz"):
            assert await asked(gate, "GET", path) == [path]
        for path in ("/", "/nothing", "/v2x", "/v1/models", "//", "/-", "/-/nothing"):
            for method in ("GET", "POST"):
                start, body = await asked(gate, method, path)
                assert (start["status"], dict(start["headers"])[b"content-type"]) == (
                    404,
                    b"application/json",
                )
                assert f"there is nothing at {path!r}" in json.loads(body["body"])["error"]

    asyncio.run(scene())
