"""Ids to text as they come. Invariant: what was given out is never rewritten, and a character whose bytes are still
incomplete is held back; the pieces joined are the text of all ids, without an unfinished character at the very end.

Formula: with a window of ids whose first part is already shown, new text = decode(window) − decode(shown part). Keeping the
shown part in the window gives the decoder the context it needs for leading spaces.
"""

from collections.abc import Sequence
from typing import Final

from pratique_server.text.tokenizer import Tokenizer

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# From this many held ids on, those that no later id can change are given out although they are no valid text.
HELD_TOKENS_MAX: Final = 8
# A character has at most four bytes, and a visible id at least one: whatever has three visible ids behind it is settled.
SETTLING_TOKENS: Final = 3


class Detokenizer:
    """One per output sequence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._shown_text = ""
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Add ids, return the text that is now certain (often one token's, sometimes none)."""
        return "".join(self._push_one(token_id) for token_id in ids)

    def _push_one(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._tokenizer.decode(self._shown + self._held)
        fresh = text[len(self._shown_text) :]
        if not fresh:
            # Nothing visible (a special token, or a fragment the decoder joins later): wait, but not for ever.
            if len(self._held) > HELD_TOKENS_MAX:
                self._held = self._held[-HELD_TOKENS_MAX:]
            return ""
        if fresh.endswith(REPLACEMENT):
            if len(self._held) < HELD_TOKENS_MAX:
                return ""
            settled = self._settled(text)
            if settled:
                return self._give(settled)
            if len(self._held) < 2 * HELD_TOKENS_MAX:
                return ""
        return self._give(len(self._held))

    def _settled(self, text: str) -> int:
        """How many of the held ids no later id can change; ``text`` is that of the whole window."""
        visible = 0
        for count in range(len(self._held) - 1, 0, -1):
            visible += bool(self._tokenizer.decode([self._held[count]]))
            # A character that the cut would part shows otherwise in the whole.
            if visible >= SETTLING_TOKENS and text.startswith(self._tokenizer.decode(self._shown + self._held[:count])):
                return count
        return 0

    def _give(self, count: int) -> str:
        """Show the first ``count`` held ids."""
        given, self._held = self._held[:count], self._held[count:]
        fresh = self._tokenizer.decode(self._shown + given)[len(self._shown_text) :]
        self._shown = given
        self._shown_text = self._tokenizer.decode(given)
        return fresh

    def finish(self) -> str:
        """Give out what is certain among the held ids; an unfinished character is dropped."""
        fresh = self._tokenizer.decode(self._shown + self._held)[len(self._shown_text) :]
        self._held = []
        return fresh.rstrip(REPLACEMENT)
