"""Import an app by a reference such as `tasks:app`, and make a reference by which a child process imports it."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from tenure.errors import InvalidArgument

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.tasks import Task

#: The module name of a program in a process pool: not `__main__`, so that `if __name__ == "__main__"` does not run
#: there.
CHILD_MAIN = "__tenure_main__"


def split(reference: str) -> tuple[str, str]:
    """Split `tasks:app`, `path/tasks.py:app`, or `tasks` (whose only app is used) into module and attribute."""
    module, colon, rest = reference.rpartition(":")
    if not colon:
        module, rest = reference, ""
    if not module:
        raise InvalidArgument(f"{reference!r} names no module: write MODULE:APP, as in tasks:app")
    return module, rest


def load_app(reference: str) -> App:
    """Import the module and return its app. Raises InvalidArgument, or whatever the import raises."""
    module_name, attribute = split(reference)
    module = load_module(module_name)
    if not attribute:
        return _only_app(module, module_name)
    found = _walk(module, module_name, attribute)
    if not _is_app(found):
        raise InvalidArgument(f"{reference} is a {type(found).__name__}, not an App")
    return found


def load_task(reference: str) -> Task[Any, Any, Any]:
    """Import a task by `tasks:app.send` or `tasks:send`."""
    from tenure.worker.tasks import Task

    module_name, attribute = split(reference)
    module = load_module(module_name)
    if not attribute:
        raise InvalidArgument(f"{reference!r} names no task: write MODULE:APP.TASK, as in tasks:app.send")
    head, _, rest = attribute.partition(".")
    first = _walk(module, module_name, head)
    if _is_app(first) and rest:
        return first.find(rest)
    found = _walk(module, module_name, attribute)
    if not isinstance(found, Task):
        raise InvalidArgument(f"{reference} is a {type(found).__name__}, not a task")
    return found


def load_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: an installed command does not search the working directory
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise InvalidArgument(f"there is no file {name}")
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        name = path.stem
    elif name.startswith(".") or os.sep in name:
        raise InvalidArgument(f"{name!r} is no module: write tasks:app, package.tasks:app or path/to/tasks.py:app")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(exc.name + ".")):
            raise InvalidArgument(
                f"there is no module {exc.name!r} here: run the command where {exc.name.partition('.')[0]}.py is"
            ) from None
        raise


def reference_to(app: App) -> str:
    """Return a reference by which another process imports this app.

    Raises InvalidArgument if it is in no module's variable.
    """
    modules = [task.function.__module__ for task in app.tasks.values()]
    for name in [*dict.fromkeys(modules), *list(sys.modules)]:
        module = sys.modules.get(name)
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                if name != "__main__":
                    return f"{name}:{attribute}"
                spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
                if spec is not None:
                    return f"{spec.name}:{attribute}"  # started with python -m
                if file is not None:
                    return f"{CHILD_MAIN}={os.path.abspath(file)}:{attribute}"
    raise InvalidArgument("a process pool has to import the app: make it a variable of a module")


def load_for_child(reference: str) -> App:
    """Import an app by the result of `reference_to`, in a process of a pool."""
    if not reference.startswith(CHILD_MAIN + "="):
        return load_app(reference)
    path, _, attribute = reference.removeprefix(CHILD_MAIN + "=").rpartition(":")
    # Task names must equal the parent's, which derive from the program's file.
    found: App = runpy.run_path(path, run_name=CHILD_MAIN)[attribute]
    return found


def _walk(module: ModuleType, module_name: str, path: str) -> object:
    found: object = module
    for step in path.split("."):
        if not hasattr(found, step):
            apps = [name for name, value in vars(module).items() if _is_app(value)]
            hint = f": did you mean {module_name}:{apps[0]}?" if apps else ""
            raise InvalidArgument(f"module {module_name!r} has no {path!r}{hint}")
        found = getattr(found, step)
    return found


def _only_app(module: ModuleType, name: str) -> App:
    apps = {id(value): (attribute, value) for attribute, value in vars(module).items() if _is_app(value)}
    if len(apps) == 1:
        return next(iter(apps.values()))[1]
    what = "no App" if not apps else f"several Apps ({', '.join(sorted(a for a, _ in apps.values()))})"
    raise InvalidArgument(f"module {name!r} has {what}: write {name}:NAME")


def _is_app(value: object) -> TypeGuard[App]:
    from tenure.worker.app import App

    return isinstance(value, App)
