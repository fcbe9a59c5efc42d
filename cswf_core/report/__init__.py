"""`report.html`: a run, or several beside each other, as one page that needs nothing but a browser."""

from cswf_core.report.pages import compare, is_report, single, write_report

__all__ = ["compare", "is_report", "single", "write_report"]
