"""The version of ringtop, where everything that shows or packs it reads it."""

VERSION = "0.1.0"
