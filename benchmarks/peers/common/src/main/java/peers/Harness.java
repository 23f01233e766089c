package peers;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;

/** Runs a peer as the command line says, and prints one line of JSON for each run. */
public final class Harness {
    private static final int WARM = 200_000;
    private static final double WARM_SECONDS = Double.parseDouble(System.getProperty("warm", "8"));

    private static final double TEXT_SECONDS = 15;

    private Harness() {}

    /**
     * `pattern COLUMNS EVENTS QUERY...`, `queries COLUMNS EVENTS NUMBER...`, `epl COLUMNS EVENTS STREAMS TEXT` or
     * `latency COLUMNS EVENTS`. The engine is run over a growing part of the data first, so that the machine is warm when time counts.
     */
    public static void main(Peer peer, String[] arguments) throws Exception {
        Columns data = Columns.read(Path.of(arguments[1]));
        int events = Math.min(Integer.parseInt(arguments[2]), data.size());
        Sink sink = new Sink();
        String[] rest = Arrays.copyOfRange(arguments, 3, arguments.length);
        switch (arguments[0]) {
            case "pattern" -> {
                for (String each : rest) {
                    Query query = Query.of(each);
                    measure(peer, each, data, events, sink, n -> peer.run(query, data, n, sink));
                }
            }
            case "queries" -> {
                for (String each : rest) {
                    int number = Integer.parseInt(each);
                    measure(peer, each, data, events, sink, n -> peer.runMany(number, data, n, sink));
                }
            }
            case "epl" -> text(peer, rest[0].equals("2"), rest[1], data, events, sink);
            case "latency" -> latency(peer, data, events, sink);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0); // some engines leave threads behind
    }

    /** One query as a text; it gets a part of the time, so that a hundred of them are through in a few minutes. */
    private static void text(Peer peer, boolean second, String text, Columns data, int events, Sink sink)
            throws Exception {
        double warm = Math.min(WARM_SECONDS, TEXT_SECONDS / 4);
        double spent = 0;
        for (int part = Math.min(2_000, events); spent < warm; part = Math.min(part * 4, events)) {
            sink.reset(data);
            spent += peer.runText(text, second, data, part, warm, sink).seconds() + 0.1;
        }
        System.gc();
        sink.reset(data);
        Peer.Part done = peer.runText(text, second, data, events, TEXT_SECONDS, sink);
        report(peer, "text", done.events(), done.seconds(), sink);
    }

    private interface Run {
        double seconds(int events) throws Exception;
    }

    private static void measure(Peer peer, String query, Columns data, int events, Sink sink, Run run)
            throws Exception {
        double spent = 0;
        for (int part = Math.min(2_000, events); spent < WARM_SECONDS; part = Math.min(part * 4, events)) {
            sink.reset(data);
            spent += run.seconds(part) + 0.5;
            if (part >= Math.min(WARM, events) && spent > WARM_SECONDS / 2) {
                break;
            }
        }
        System.gc();
        sink.reset(data);
        report(peer, query, events, run.seconds(events), sink);
    }

    private static void report(Peer peer, String query, int events, double seconds, Sink sink) throws IOException {
        System.out.printf(
                Locale.ROOT,
                "{\"engine\": \"%s\", \"version\": \"%s\", \"query\": \"%s\", \"events\": %d, \"matches\": %d, "
                        + "\"checksum\": \"%016x\", \"seconds\": %.6f, \"max_rss\": %d}%n",
                peer.name(), peer.version(), query, events, sink.matches, sink.checksum, seconds, maxRss());
    }

    private static void latency(Peer peer, Columns data, int events, Sink sink) throws Exception {
        sink.reset(data);
        sink.timed = true;
        long[] found = peer.latencies(data, events / 2, events, sink);
        Arrays.sort(found);
        System.out.printf(
                Locale.ROOT,
                "{\"engine\": \"%s\", \"version\": \"%s\", \"query\": \"3 any\", \"events\": %d, \"matches\": %d, "
                        + "\"checksum\": \"%016x\", \"samples\": %d, \"p50\": %.3f, \"p99\": %.3f, \"max_rss\": %d}%n",
                peer.name(), peer.version(), events, sink.matches, sink.checksum, found.length,
                at(found, 0.5), at(found, 0.99), maxRss());
    }

    private static double at(long[] sorted, double share) {
        return sorted[(int) Math.min(sorted.length - 1, share * sorted.length)] / 1000.0;
    }

    /** The most memory that the process held, in bytes; 0 where the system does not say. */
    private static long maxRss() throws IOException {
        Path status = Path.of("/proc/self/status");
        if (!Files.exists(status)) {
            return 0;
        }
        for (String line : Files.readAllLines(status)) {
            if (line.startsWith("VmHWM:")) {
                return 1024 * Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        return 0;
    }
}
