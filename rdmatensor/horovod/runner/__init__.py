"""The launcher: hosts and slots, processes, options. Loads torch only where a job runs."""
