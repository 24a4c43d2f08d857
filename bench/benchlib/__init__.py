"""What the benchmarks share: running programs and pairs of workers, keeping results, judging them.

It uses public interfaces of rdmatensor only, and imports rdmatensor nowhere but in the workers.
"""
