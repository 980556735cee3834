"""What a user writes, job and profile, and the plan that follows from both."""
