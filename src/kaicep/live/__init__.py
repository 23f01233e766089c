"""The live event service: a graph of operators with priorities, validity intervals and shedding.

A graph and suppliers' events enter; consumers get what is still valid, by priority. Empty so far
(semantics 4 says what it will be).
"""
