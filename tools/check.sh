#!/bin/sh
# The gates of hooks and CI alike: lint, format, types.
set -eu
cd "$(dirname "$0")/.."
ruff check .
ruff format --check .
pyright
