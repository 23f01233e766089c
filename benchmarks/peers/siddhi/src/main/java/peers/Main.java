package peers;

import io.siddhi.core.SiddhiAppRuntime;
import io.siddhi.core.SiddhiManager;
import io.siddhi.core.event.Event;
import io.siddhi.core.stream.input.InputHandler;
import io.siddhi.core.stream.output.StreamCallback;

/**
 * Siddhi, in playback: its clock is that of the events. It counts in milliseconds, so that it is told microseconds and
 * takes them for that; nothing but the unit is different.
 *
 * <p>Everything runs in a partition by sensor, since its windows have no index. `every e1 -> e2` takes the first e2
 * only, which is query 3 with `MATCH next`; with `any` it is a join with a window. That window lets go
 * of old events only when a new one enters it, so that the join compares the times as well.
 *
 * <p>It is not asked for the loop, nor for the absence: in twenty thousand partitions that took more than 100 seconds
 * for 60,000 events.
 */
public final class Main implements Peer {
    private static final String REPORT =
            "define stream Report (sensorID string, index int, flowrate double, ts long);\n";

    public static void main(String[] arguments) throws Exception {
        Harness.main(new Main(), arguments);
    }

    @Override
    public String name() {
        return "Siddhi";
    }

    @Override
    public String version() {
        return "5.1.30";
    }

    private static String app(Query query) {
        return switch (query) {
            case FILTER -> REPORT
                    + "from Report[flowrate > 500.0] select sensorID, index, flowrate insert into Out;";
            case AVERAGE -> REPORT
                    + "from Report#window.externalTime(ts, 300000000 milliseconds) "
                    + "select sensorID, index, avg(flowrate) as average group by sensorID "
                    + "having average > 500.0 insert into Out;";
            case ANY -> partitioned(
                    "from Report as b unidirectional join "
                            + "Report[flowrate > 500.0]#window.externalTime(ts, 300000001 milliseconds) as a "
                            + "on b.flowrate - a.flowrate > 50.0 and b.ts - a.ts <= 300000000L "
                            + "select a.sensorID as sensorID, a.index as first, b.index as second, "
                            + "b.flowrate as flowrate insert into Out;");
            case NEXT -> partitioned(
                    "from every a=Report[flowrate > 500.0] -> b=Report[flowrate - a.flowrate > 50.0] "
                            + "within 300000000 milliseconds "
                            + "select a.sensorID as sensorID, a.index as first, b.index as second, "
                            + "b.flowrate as flowrate insert into Out;");
            case LOOP, ABSENCE -> throw new UnsupportedOperationException(query.text);
        };
    }

    private static String partitioned(String query) {
        return "@app:playback\n" + REPORT + "partition with (sensorID of Report) begin\n" + query + "\nend;";
    }

    /** Gives what comes out to the sink: rows of sensor, events, value. */
    private static final class Deliver extends StreamCallback {
        private final Sink sink;

        Deliver(Sink sink) {
            this.sink = sink;
        }

        @Override
        public void receive(Event[] events) {
            for (Event each : events) {
                Object[] row = each.getData();
                if (row.length == 3) {
                    sink.one((String) row[0], (int) row[1], (double) row[2]);
                } else {
                    sink.pair((String) row[0], (int) row[1], (int) row[2], (double) row[3]);
                }
            }
        }
    }

    @Override
    public double run(Query query, Columns data, int events, Sink sink) throws Exception {
        SiddhiManager manager = new SiddhiManager();
        SiddhiAppRuntime runtime = manager.createSiddhiAppRuntime(app(query));
        runtime.addCallback("Out", new Deliver(sink));
        InputHandler input = runtime.getInputHandler("Report");
        runtime.start();
        long started = System.nanoTime();
        for (int i = 0; i < events; i++) {
            send(input, data, i);
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        runtime.shutdown();
        manager.shutdown();
        return seconds;
    }

    private static void send(InputHandler input, Columns data, int i) throws InterruptedException {
        Object[] row = {data.names[data.sensor[i]], i, data.flow[i], data.ts[i]};
        input.send(data.ts[i], row);
    }

    @Override
    public long[] latencies(Columns data, int warm, int events, Sink sink) throws Exception {
        SiddhiAppRuntime runtime = new SiddhiManager().createSiddhiAppRuntime(app(Query.ANY));
        runtime.addCallback("Out", new Deliver(sink));
        InputHandler input = runtime.getInputHandler("Report");
        runtime.start();
        return Latencies.of(data, warm, events, sink, i -> send(input, data, i));
    }
}
