"""Import what is large without the garbage collector: every entry point brings torch and transformers in through here.

They make half a million objects that live as long as the process. While they come in, the collector would walk what is there already
again and again, and free nothing: a second of processor time in each process that imports them. Afterwards every full collection would
walk them all (0.4 s in which nothing else happens, no token either), and the interpreter once more before it ends. So collection rests
while they are imported, and what is there then is never looked at again.
"""

import gc
import sys
from importlib import import_module


def import_large(*names: str) -> None:
    """Import the modules of these names; those that are there already cost nothing. Not for a module that loads a model: what a
    model leaves behind must be freed."""
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in missing:
            import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
