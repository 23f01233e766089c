package peers;

import java.util.Arrays;

/** One event at a time: from the call that sends it to the last match that it makes. */
public final class Latencies {
    private Latencies() {}

    /** How an engine takes the event with an index. */
    public interface Send {
        void event(int index) throws Exception;
    }

    /** The nanoseconds of those events after the first `warm` that made a match. */
    public static long[] of(Columns data, int warm, int events, Sink sink, Send send) throws Exception {
        long[] found = new long[events];
        int count = 0;
        for (int i = 0; i < events; i++) {
            long before = sink.matches;
            long started = System.nanoTime();
            send.event(i);
            if (i >= warm && sink.matches > before) {
                found[count++] = sink.when - started;
            }
        }
        return Arrays.copyOf(found, count);
    }
}
