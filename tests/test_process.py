"""The order in which this process's objects are renewed after a fork and closed at exit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

_OBJECTS = """
    import gc, os, sys
    from tenure.process import Layer, closed_at_exit, renewed_after_fork

    class One:
        def __init__(self, name, fails=False):
            self.name, self.fails = name, fails
        def say(self, what):
            os.write(1, f"{what} {self.name}\\n".encode())
            if self.fails:
                raise RuntimeError(f"{self.name} fails")
        def renew_after_fork(self):
            self.say("renew")
        def close_at_exit(self):
            self.say("close")

    def made(name, layer, fails=False):
        one = One(name, fails)
        renewed_after_fork(one, layer)
        closed_at_exit(one, layer)
        return one
"""


def _run(script: str) -> tuple[list[str], str]:
    code = textwrap.dedent(_OBJECTS) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines(), done.stderr


def test_exit_closes_from_the_top_layer_down_and_the_last_opened_first():
    said, errors = _run("""
        held = [made("sweeper", Layer.SWEEPER), made("engine-1", Layer.STORAGE), made("app", Layer.APPLICATION),
                made("engine-2", Layer.STORAGE), made("listener", Layer.LISTENER)]
    """)
    assert said == ["close app", "close sweeper", "close listener", "close engine-2", "close engine-1"]
    assert not errors


def test_a_forked_child_renews_from_the_bottom_layer_up_and_closes_nothing_of_its_parents():
    said, errors = _run("""
        held = [made("listener", Layer.LISTENER), made("engine", Layer.STORAGE), made("meters", Layer.TELEMETRY)]
        child = os.fork()
        if not child:
            late = made("child's", Layer.STORAGE)
            sys.exit()
        os.waitpid(child, 0)
    """)
    assert said == [
        *("renew meters", "renew engine", "renew listener", "close child's"),
        *("close listener", "close engine", "close meters"),
    ]
    assert not errors


def test_objects_are_held_weakly():
    said, _ = _run("""
        held = made("held", Layer.STORAGE)
        made("dropped", Layer.STORAGE)
        gc.collect()
    """)
    assert said == ["close held"]


def test_one_that_raises_does_not_keep_the_others_from_their_turn():
    said, errors = _run("""
        held = [made("below", Layer.STORAGE), made("broken", Layer.LISTENER, fails=True)]
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    """)
    assert said == ["renew below", "renew broken", "close broken", "close below"]
    assert "broken fails" in errors


def test_a_store_that_is_left_open_is_closed_in_order(tmp_path: Path):
    """The sweeper and the listener use the engine: it is closed last, and nobody is told of an error."""
    said, errors = _run(f"""
        import tenure
        from tenure.api.sweeper import Sweeper
        from tenure.backends.owner.listener import Listener
        from tenure.storage.engines.rocksdb.engine import RocksEngine

        def telling(kind, name):
            real = getattr(kind, name)
            def told(self, *args, **kwargs):
                os.write(1, f"{{kind.__name__}}.{{name}}\\n".encode())
                return real(self, *args, **kwargs)
            setattr(kind, name, told)

        telling(Sweeper, "stop"), telling(Listener, "stop"), telling(RocksEngine, "close")
        store = tenure.open({f"rocksdb:{tmp_path}/data"!r}, sweep=True)
        store.queue("q").enqueue(b"x")
    """)
    assert said == ["Sweeper.stop", "Listener.stop", "RocksEngine.close"]
    assert not errors
    assert not (tmp_path / "data" / "SOCKET").exists()


_SIGNALS = """
    import signal, threading
    from tenure.process import signals_handled

    event, count = threading.Event(), 0

    def handle(number):
        global count
        event.set()
        count += 1

    def send():
        for _ in range(300):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_signal_may_arrive_while_the_main_thread_holds_the_lock_of_the_event_it_sets():
    said, errors = _run(
        textwrap.dedent(_SIGNALS)
        + textwrap.dedent("""
        with signals_handled(handle):
            sender = threading.Thread(target=send)
            sender.start()
            while sender.is_alive():
                event.set()
                event.clear()
        print("the main thread went on; signals were handled:", count > 1)
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """)
    )
    assert said == ["the main thread went on; signals were handled: True", "True"]
    assert not errors


def test_the_second_signal_interrupts_if_that_is_wanted():
    said, errors = _run(
        textwrap.dedent(_SIGNALS)
        + textwrap.dedent("""
        try:
            with signals_handled(handle, interrupt_at_second=True):
                os.kill(os.getpid(), signal.SIGINT)
                print("set:", event.wait(30))
                os.kill(os.getpid(), signal.SIGINT)
                print("not reached")
        except KeyboardInterrupt:
            print("interrupted")
    """)
    )
    assert said == ["set: True", "interrupted"]
    assert not errors
