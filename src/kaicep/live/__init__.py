"""The live event service: a graph of operators with priorities, validity intervals and shedding.

A graph and suppliers' events enter; consumers get what is still valid, by priority. `graph` says what a graph
is, `sharing` what of it is run once, and how a query is an operator; `event_service` runs it: `processor`
decides what starts, and has the threads, `bindings` keeps the events and says what is ready. `kinds` is the
library of operators, `gateway` the way in and out over the network, `metrics` what is counted.
"""
