"""The one place where a download is told to stop: by a signal, by a lost lock, or since another part of it has failed."""

import threading

from pratique_server.fetch.errors import HaltedError


class Halt:
    """Set once, never cleared. ``child()`` is one that its parent stops too, but not the other way round."""

    def __init__(self, parent: "Halt | None" = None) -> None:
        self._event = threading.Event()
        self._children: list[Halt] = []
        if parent is not None:
            parent._children.append(self)
            if parent.stopped:
                self.stop()

    def child(self) -> "Halt":
        return Halt(self)

    def stop(self) -> None:
        self._event.set()
        for child in self._children:
            child.stop()

    @property
    def stopped(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raises ``HaltedError`` when it is time to stop."""
        if self._event.is_set():
            raise HaltedError

    def wait(self, seconds: float) -> None:
        """Sleep that ends early, with ``HaltedError``, when told to stop."""
        if self._event.wait(seconds):
            raise HaltedError
