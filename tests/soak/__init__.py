"""The soak: many short commands under faults, and what they leave compared with undisturbed ones.

`make soak` draws cases for so many minutes. A case is a work (`works`: a run, a sweep, samples and so on) and
one or more faults (`faults`: signals, a full disk, a plugin that fails and so on), both drawn from the seed and
the case's number. After its faults the work is brought to its end as a person would do it (`case`), and what it
leaves is compared with what the same work leaves undisturbed (`results`).
"""
