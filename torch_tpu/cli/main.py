"""Entry point of the ``torch-tpu`` command; each subcommand is a module beside this one."""

from __future__ import annotations

import argparse
import sys

from torch_tpu.cli import info, plan


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torch-tpu", description="A native PyTorch backend for Google TPUs.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    info.add_parser(commands)
    plan.add_parser(commands)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
