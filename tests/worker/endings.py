"""An app whose handlers end in every way a handler can end. Imported by the children of process pools, too."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from tenure import App, current_job

app = App("memory:", sweep=False)


class Unprintable(Exception):
    """Resists being looked at."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class OwnBaseException(BaseException):
    pass


def _raise(error: BaseException) -> Callable[[], object]:
    def handler() -> object:
        raise error

    return handler


def _recurse(depth: int = 0) -> int:
    return _recurse(depth + 1)


def _memory() -> object:
    return bytearray(1 << 62)


def _exception_from_outside() -> None:
    """As a timeout library does it: an exception set in this thread by another, raised at some later bytecode."""
    set_async = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_async(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(OwnBaseException))


async def _subtask_exits() -> None:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(asyncio.create_task(leave()))


async def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


async def _future_of_generator_exit() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, future.set_exception, GeneratorExit("from a future"))
    await future


async def _raise_async(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def _stop_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    raise ValueError("after loop.stop()")


ERRORS: dict[str, BaseException] = {
    "BaseException": OwnBaseException("own"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "StopIteration": StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "MemoryError": MemoryError(),
    "unprintable": Unprintable(),
    "group": BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]),
}
PLAIN: dict[str, Callable[[], object]] = {name: _raise(error) for name, error in ERRORS.items()} | {
    "recursion": _recurse,
    "memory": _memory,
    "result of another type": lambda: "text",
    "result that cannot be encoded": object,
    "exception from outside": _exception_from_outside,
}
COROUTINES: dict[str, Callable[[], object]] = {
    "subtask exits": _subtask_exits,
    "all tasks cancelled": _cancel_all,
    "future of GeneratorExit": _future_of_generator_exit,
    "loop.stop": _stop_loop,
}
#: These end the process: only a pool of processes outlives them.
FATAL: dict[str, Callable[[], object]] = {
    "os._exit": lambda: os._exit(7),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}


@app.task(max_attempts=1)
def plain(how: str) -> int:
    return (PLAIN | FATAL)[how]()  # type: ignore[return-value]  # what it returns is wrong on purpose


@app.task(max_attempts=1)
async def coroutine(how: str) -> int:
    if how in COROUTINES:
        return await COROUTINES[how]()  # type: ignore[misc,no-any-return]
    if how in ERRORS:
        await _raise_async(ERRORS[how])
    return (PLAIN | FATAL)[how]()  # type: ignore[return-value]


@app.task
def hold(seconds: float) -> str:
    time.sleep(seconds)
    return "held"


@app.task(max_attempts=1)
def forks(how: str) -> str:
    """Leaves the handler in two processes."""
    child = os.fork()
    if child:
        return f"the child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"
    if how == "exits":
        sys.exit(3)
    if how == "raises":
        raise Unprintable
    if how == "reports":
        current_job().step("step", lambda: 1)
    return "the child"


@app.task(max_attempts=1)
async def forks_async(how: str) -> str:
    return forks(how)
