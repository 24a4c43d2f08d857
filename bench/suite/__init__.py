"""`rdmatensor bench`: the suite that a user runs, its tables, its comparison and its report."""
