"""What runs programs: platform, buffers, transfers, the program cache, memory accounting, errors."""
