"""The embedded fleet behind ringtop up."""
