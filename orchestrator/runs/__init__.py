"""What is known of a run, from the files in its folder."""
