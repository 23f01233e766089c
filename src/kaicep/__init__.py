"""kaicep: complex event processing that knows what your events are about.

Say "kai-CEP", from the Greek letter chi. `kaicep.testing` is the kit to test queries with; the command
line is `kaicep`.
"""

from kaicep.errors import Failure, KaicepError, Mistake, Unsupported

__version__ = "0.1.0"

__all__ = ["Failure", "KaicepError", "Mistake", "Unsupported", "__version__"]
