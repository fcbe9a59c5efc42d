"""What a soak has done: commands, faults and exit statuses, counted over all cases and workers."""

from __future__ import annotations

from collections import Counter


def pytest_terminal_summary(terminalreporter):
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    ends = [report for report in reports if getattr(report, "when", "") == "teardown"]
    counts = Counter(fact for report in ends for fact in report.user_properties)
    for (kind, name), count in sorted(counts.items()):
        terminalreporter.line(f"{kind:<10}{name:<24}{count:>8,}")
