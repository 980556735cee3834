"""A request, validated and planned, and recorded as a run: below the supervisor, which starts runs too."""
