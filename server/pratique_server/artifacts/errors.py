"""What making or checking a release raises.

ReleaseError
├── FolderError     a folder lacks what every load needs
├── ManifestError   what was loaded cannot be described as a release
└── RecordingError  no golden record can be made of this release
"""


class ReleaseError(Exception):
    """Base; the message is a sentence a person can act on."""


class FolderError(ReleaseError):
    """A folder lacks what every load needs, or holds something else under its name."""


class ManifestError(ReleaseError):
    """What was loaded cannot be described as a release."""


class RecordingError(ReleaseError):
    """No golden record can be made of this release."""
