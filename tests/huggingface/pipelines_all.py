"""All cases of the pipeline sweep by name."""

from __future__ import annotations

import pipelines_dit  # noqa: F401
import pipelines_unet  # noqa: F401
import pipelines_video  # noqa: F401
from pipelines_case import CASES

__all__ = ["CASES"]
