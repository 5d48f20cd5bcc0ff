"""Stop strings over streamed text. They may span tokens: text that could be the beginning of one is held back until it
cannot be. The stop string itself is never given out."""

from collections.abc import Sequence


class StopStrings:
    """One per output sequence. ``matched`` names the stop string that ended it."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would end every answer at once"
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text, return what can be shown now. After a match nothing more is shown."""
        if self.matched is not None:
            return ""
        pending = self._held + text
        found = [(start, stop) for stop in self._stops if (start := pending.find(stop)) >= 0]
        if found:
            start, self.matched = min(found, key=lambda match: match[0])
            self._held = ""
            return pending[:start]
        keep = self._held_length(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """The sequence ended otherwise: the held text was not a stop string after all."""
        text, self._held = self._held, ""
        return text

    def _held_length(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
