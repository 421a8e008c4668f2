"""Error handling of gRPC handlers: VenusErrors become statuses; other errors are logged and reported as a failure."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from venus.errors import VenusError
from venus.rpc.errors import to_status

logger = logging.getLogger(__name__)


@asynccontextmanager
async def abort_on_error(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Run the body of a handler. A peer that has left gets no answer."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except VenusError as error:
        await _abort(context, error)
    except Exception as error:
        if context.done():  # gRPC raises from reads and writes of a call whose peer has gone
            return
        logger.exception("a call of %s failed", context.peer())
        await _abort(context, VenusError(f"the broker failed: {error!r}"))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: VenusError) -> None:
    if not context.done():
        status = to_status(error)
        await context.abort(status.code, status.details, status.metadata)
