"""The backend of ringtop: everything but the terminal. Imports neither Textual nor rich."""
