"""Every fault of the suite, by the part that is wrong. A new one is a row in the table of its part."""

from typing import Final

from tests.mutation.fault import Fault, require_unique
from tests.mutation.faults import computation, declared, request_path, streams, texts, weights

FAULTS: Final[tuple[Fault, ...]] = require_unique(
    (*weights.FAULTS, *texts.FAULTS, *declared.FAULTS, *computation.FAULTS, *streams.FAULTS, *request_path.FAULTS)
)
