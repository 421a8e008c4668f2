"""A web server that streams changes as lines of JSON: `uvicorn stream_changes:app`, then `curl -N localhost:8000`."""

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from venus.client import connect_async

Message = MutableMapping[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    headers = [(b"content-type", b"application/x-ndjson")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    streaming = asyncio.create_task(stream(send))
    while (await receive())["type"] != "http.disconnect":
        pass
    streaming.cancel()


async def stream(send: Callable[[Message], Awaitable[None]]) -> None:
    async with connect_async(os.environ.get("BROKER", "127.0.0.1:7400")) as broker, broker.changes("orders") as changes:
        async for batch in changes:
            body = "".join(f"{line}\n" for line in batch.lines()).encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})  # waits for a slow reader
