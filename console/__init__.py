"""The terminal side of ringtop. Uses ``backend.api`` and nothing else of the backend."""
