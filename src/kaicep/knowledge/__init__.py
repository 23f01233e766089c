"""Knowledge about the world that the events come from.

Enter: files of RDF, annotations of streams, events. Leave: a closed knowledge base that answers triple
patterns (`store`), and the graph of each event as its annotation tells it (`event_graph`).

It may change while queries run: `closure` keeps it closed, `loading` tells what holds when, `watching`
follows files that are edited and servers that are asked.
"""
