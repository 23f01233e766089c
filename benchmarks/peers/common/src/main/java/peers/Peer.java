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

    /** Nanoseconds from each event to its last match, of those events that have one. */
    default long[] latencies(Columns data, int warm, int events, Sink sink) throws Exception {
        throw new UnsupportedOperationException("latency");
    }
}
