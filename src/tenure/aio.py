"""The same verbs for asyncio: `from tenure import aio`. The adapter itself is `tenure.api.aio`."""

from tenure.api.aio import AsyncClaim, AsyncQueue, AsyncStore, open

__all__ = ["AsyncClaim", "AsyncQueue", "AsyncStore", "open"]
