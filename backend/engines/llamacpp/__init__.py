"""llama.cpp over RPC: workers, a leader, and the signals they really give."""
