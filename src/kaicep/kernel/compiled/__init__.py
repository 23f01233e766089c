"""Operators compiled by Numba: source is generated for the shape of a plan, and runs over columns.

What enters is a plan and tables of final events (`kernel.columns`), what leaves are matches as columns.
What cannot be compiled yet is told in words (`compilable`), and is left to the interpreted operators.
"""
