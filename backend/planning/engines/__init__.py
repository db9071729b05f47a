"""What is known of each engine before it runs."""
