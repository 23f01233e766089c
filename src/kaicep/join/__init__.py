"""Past and present as one answer: the archive up to a cut, and the source from there on.

A query is handed over at the cut, or one engine for each side runs beside one for what lies across.
"""
