"""The background process that looks after a user's live runs: brings each to its verdict, relaunches it, sends news."""
