"""What running a review raises."""

from pratique_server.artifacts.errors import ReleaseError


class ReviewError(ReleaseError):
    """A test cannot be run on what was given; the message is a sentence a person can act on."""
