"""Where is what this user's programs remember between runs?"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """HEADLIGHT_CACHE, or a folder in this user's cache. It need not be there yet."""
    import platformdirs

    return Path(os.environ.get("HEADLIGHT_CACHE") or platformdirs.user_cache_path("headlight", appauthor=False))
