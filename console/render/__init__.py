"""Pure rendering: fleet state in, cells out. No widget computes a value."""
