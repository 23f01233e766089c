"""How much of what is random is tried: some of it by day, much of it at night (`make night`)."""

from __future__ import annotations

import os

EXAMPLES = int(os.environ.get("KAICEP_EXAMPLES", "60"))
"""How many random cases a test looks at."""

FEWER = max(50, EXAMPLES // 5)
"""The same where a case takes longer."""
