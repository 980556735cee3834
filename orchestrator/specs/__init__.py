"""The job and the profile that a user writes, and the launch plan that follows from both."""
