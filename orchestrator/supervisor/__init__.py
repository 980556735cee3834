"""One background process a user while runs are live: brings each to its verdict, relaunches it, tells of it."""
