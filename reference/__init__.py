"""The reference pages of the documentation, generated from the classes, hooks and commands themselves.

A page in `docs/` says with a comment, `<!-- generated: contract cdf -->`, where generated text goes;
`reference/pages.py` lists the words that may stand there. Nothing that is generated is kept in the repository.
"""
