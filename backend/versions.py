"""The version of this distribution, as it says it on the wire."""

from importlib.metadata import PackageNotFoundError, version

try:
    RINGTOP_VERSION = version("ringtop")
except PackageNotFoundError:
    RINGTOP_VERSION = "unpackaged"
