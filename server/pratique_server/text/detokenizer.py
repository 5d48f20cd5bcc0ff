"""Ids to text as they come. Invariant: what was given out is never rewritten, and a character whose bytes are still
incomplete is held back; the pieces joined are the text of all ids, without an unfinished character at the very end.

Formula: with a window of ids whose first part is already shown, new text = decode(window) − decode(shown part). Keeping the
shown part in the window gives the decoder the context it needs for leading spaces.
"""

from collections.abc import Sequence
from typing import Final

from pratique_server.text.tokenizer import Tokenizer

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# A character is at most four bytes, so at most four tokens. Bytes that stay invalid beyond this are shown as they are.
HELD_TOKENS_MAX: Final = 8


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
        if fresh.endswith(REPLACEMENT) and len(self._held) < HELD_TOKENS_MAX:
            return ""
        self._shown, self._held = self._held, []
        self._shown_text = self._tokenizer.decode(self._shown)
        return fresh

    def finish(self) -> str:
        """Give out what is certain among the held ids; an unfinished character is dropped."""
        fresh = self._tokenizer.decode(self._shown + self._held)[len(self._shown_text) :]
        self._held = []
        return fresh.rstrip(REPLACEMENT)
