"""One's own data: `python -m cirkit check DATA_ROOT` prints the data report, `report` finds noise in a CSV file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 if the data can be used, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m cirkit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    text = "report on a folder in FashionIQ or CIRR layout; the exit code is 0 if it can be used, 1 if not"
    check = commands.add_parser("check", help=text, description=text)
    check.add_argument("root", metavar="DATA_ROOT", help="folder with captions/ and image_splits/")
    check.add_argument("--images", metavar="ROOT", help="folder that holds the image folders (default: DATA_ROOT)")
    check.add_argument("--annotations-only", action="store_true", help="do not look for images")
    check.add_argument("--quick", action="store_true", help="find missing images only, decode none")
    text = "noise report on a CSV file with the columns reference, text, target: what looks wrong, and why"
    report = commands.add_parser("report", help=text, description=text)
    report.add_argument("table", metavar="CSV", help="file with reference, text, target [, category, split]")
    report.add_argument("--images", metavar="FOLDER", help="folder with the images (default: that of the file)")
    report.add_argument("--out", metavar="FOLDER", required=True, help="folder for report.html and cleaned.csv")
    report.add_argument("--layout", metavar="FOLDER", help="also write the unflagged rows there, in FashionIQ layout")
    report.add_argument("--backbone", default="small", help="preset, hub id or folder (default: small)")
    report.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    report.add_argument("--epochs", type=int, default=4, help="of the short training, 0 for none (default: 4)")
    report.add_argument("--seed", type=int, default=0)
    report.add_argument("--keep-duplicates", action="store_true", help="flag repeated rows instead of refusing them")
    options = parser.parse_args(arguments)
    if options.command == "report":
        return noise_report(options)
    return check_data(options.root, options.images, options.annotations_only, options.quick)


def noise_report(options: argparse.Namespace) -> int:
    """Write the noise report; returns the exit code."""
    # Imported here so that --help answers at once.
    from cirkit.noise_report import report_command

    try:
        return report_command(options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def check_data(root: str, images: str | None, annotations_only: bool, quick: bool) -> int:
    """Print the data report; returns the exit code."""
    # Imported here so that --help answers at once.
    from cirkit.data.annotations import DataError
    from cirkit.data.report import data_report

    try:
        report = data_report(root, images, annotations_only, decode=not quick)
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    print(report.to_text(), end="")
    return 0 if report.usable else 1


if __name__ == "__main__":
    sys.exit(main())
