"""The live event service: a graph of operators with priorities, validity intervals and shedding.

A graph and suppliers' events enter; consumers get what is still valid, by priority. `nodes`, `graph` and
`parse` say what a graph is, `sharing` what of it is run once; `service` runs it: `processor` decides what
starts, `bindings` what is ready, `store` keeps the events, `crew` has the threads. `operators` is the
library, `queries` lets a query be one of them, `gateway` is the way in and out over the network.
"""
