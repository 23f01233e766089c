package peers;

/** An engine that runs a query over a data set. */
public interface Peer {
    String name();

    String version();

    /** Runs the query over the first so many events, in a fresh engine; returns the seconds from first to last. */
    double run(Query query, Columns data, int events, Sink sink) throws Exception;

    /** Runs query 3 with so many levels at once. */
    default double runMany(int queries, Columns data, int events, Sink sink) throws Exception {
        throw new UnsupportedOperationException("many queries");
    }

    /**
     * Runs a query that is given as a text of the engine's own language; where there are two streams, the second has
     * every other event. After so many seconds it stops. Matches are counted, and nothing else is asked of them.
     */
    default Part runText(String text, boolean second, Columns data, int events, double most, Sink sink)
            throws Exception {
        throw new UnsupportedOperationException("queries as texts");
    }

    /** How many events were sent in how many seconds. */
    record Part(int events, double seconds) {}

    /** Nanoseconds from each event to its last match, of those events that have one. */
    default long[] latencies(Columns data, int warm, int events, Sink sink) throws Exception {
        throw new UnsupportedOperationException("latency");
    }
}
