package peers;

import com.espertech.esper.common.client.EPCompiled;
import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.DeploymentOptions;
import com.espertech.esper.runtime.client.EPDeployment;
import com.espertech.esper.runtime.client.EPEventService;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import java.util.concurrent.TimeUnit;

/**
 * Esper, with times in microseconds that the events bring along, matches handed to a subscriber (its quickest way), and
 * no threads of its own.
 *
 * <p>A time window of Esper lets go of an event at exactly its width, a WINDOW does so after it: hence the microsecond
 * more. Query 3 is a keyed join rather than a pattern, as one tunes it.
 */
public final class Main implements Peer {
    private static final String FIVE_MINUTES = "300 seconds 1 microseconds";

    // Longer than any window of bench/construct_queries.py: what is still waiting at the end comes out.
    private static final long TEXT_END = 400_000_000L;

    public static void main(String[] arguments) throws Exception {
        Harness.main(new Main(), arguments);
    }

    @Override
    public String name() {
        return "Esper";
    }

    @Override
    public String version() {
        return "9.0.0";
    }

    private static String epl(Query query) {
        return switch (query) {
            case FILTER -> "@name('out') select sensorID, index, flowrate from Report(flowrate > 500);";
            case AVERAGE -> "@name('out') select sensorID, index, avg(flowrate) from Report#time(5 min) "
                    + "group by sensorID having avg(flowrate) > 500;";
            case ANY -> any("out", Query.LEVEL);
            case NEXT -> "create window Waiting#time(" + FIVE_MINUTES + ") as Report;"
                    + "create index Keyed on Waiting (sensorID);"
                    + "@name('out') on Report as b select and delete a.sensorID, a.index, b.index, b.flowrate "
                    + "from Waiting as a where a.sensorID = b.sensorID and b.flowrate - a.flowrate > 50;"
                    + "insert into Waiting select * from Report(flowrate > 500);";
            case LOOP -> "@name('out') select head, tail from Report#time(" + FIVE_MINUTES + ") match_recognize ("
                    + "partition by sensorID measures A as head, B as tail all matches "
                    + "after match skip to current row pattern (A B+) define B as B.flowrate > prev(B.flowrate, 1));";
            case ABSENCE -> "@name('out') select a.sensorID, a.index, a.flowrate from pattern [every a=Report -> "
                    + "(timer:interval(60 seconds 1 microseconds) and not Report(sensorID = a.sensorID))];";
        };
    }

    private static String any(String name, double level) {
        return "@name('" + name + "') select a.sensorID, a.index, b.index, b.flowrate "
                + "from Report as b unidirectional, Report(flowrate > " + level + ")#time(" + FIVE_MINUTES + ") as a "
                + "where a.sensorID = b.sensorID and b.flowrate - a.flowrate > 50;";
    }

    /** A subscriber whose matches have one event. */
    public static final class Singles {
        private final Sink sink;

        Singles(Sink sink) {
            this.sink = sink;
        }

        public void update(String key, int event, double value) {
            sink.one(key, event, value);
        }
    }

    /** A subscriber whose matches have two events. */
    public static final class Pairs {
        private final Sink sink;

        Pairs(Sink sink) {
            this.sink = sink;
        }

        public void update(String key, int first, int second, double value) {
            sink.pair(key, first, second, value);
        }
    }

    /** A subscriber whose matches have a first event and a run of others. */
    public static final class Runs {
        private final Sink sink;

        Runs(Sink sink) {
            this.sink = sink;
        }

        public void update(Report first, Report[] others) {
            int[] indices = new int[others.length];
            for (int i = 0; i < others.length; i++) {
                indices[i] = others[i].index;
            }
            sink.run(first.sensorID, first.index, indices, others[others.length - 1].flowrate);
        }
    }

    /** A subscriber of matches of any shape. */
    public static final class Counter {
        private final Sink sink;

        Counter(Sink sink) {
            this.sink = sink;
        }

        public void update(Object[] match) {
            sink.any();
        }
    }

    private static Object subscriber(Query query, Sink sink) {
        return switch (query) {
            case FILTER, AVERAGE, ABSENCE -> new Singles(sink);
            case ANY, NEXT -> new Pairs(sink);
            case LOOP -> new Runs(sink);
        };
    }

    private static EPRuntime runtime(String epl, Object subscriber) throws Exception {
        Configuration configuration = new Configuration();
        configuration.getCommon().addEventType("Report", Report.class);
        configuration.getCommon().addEventType("Command", Report.class);
        configuration.getCommon().getTimeSource().setTimeUnit(TimeUnit.MICROSECONDS);
        configuration.getCompiler().getByteCode().setAllowSubscriber(true);
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        configuration.getRuntime().getExecution().setDisableLocking(true);
        configuration.getRuntime().getThreading().setListenerDispatchPreserveOrder(false);
        configuration.getRuntime().getThreading().setInsertIntoDispatchPreserveOrder(false);
        EPCompiled compiled = EPCompilerProvider.getCompiler().compile(epl, new CompilerArguments(configuration));
        EPRuntime runtime = EPRuntimeProvider.getRuntime("peer" + System.nanoTime(), configuration);
        runtime.getEventService().advanceTime(0);
        EPDeployment deployed = runtime.getDeploymentService().deploy(compiled, new DeploymentOptions());
        for (var statement : deployed.getStatements()) {
            if (statement.getName().startsWith("out")) {
                statement.setSubscriber(subscriber);
            }
        }
        return runtime;
    }

    @Override
    public double run(Query query, Columns data, int events, Sink sink) throws Exception {
        return feed(runtime(epl(query), subscriber(query, sink)), data, events);
    }

    @Override
    public double runMany(int queries, Columns data, int events, Sink sink) throws Exception {
        StringBuilder epl = new StringBuilder();
        for (int i = 0; i < queries; i++) {
            epl.append(any("out" + i, Query.level(i, queries))).append('\n');
        }
        return feed(runtime(epl.toString(), new Pairs(sink)), data, events);
    }

    @Override
    public Part runText(String text, boolean second, Columns data, int events, double most, Sink sink)
            throws Exception {
        EPRuntime runtime = runtime(text, new Counter(sink));
        EPEventService service = runtime.getEventService();
        long started = System.nanoTime();
        int sent = 0;
        while (sent < events && (sent % 1_000 != 0 || System.nanoTime() - started < most * 1e9)) {
            service.advanceTime(data.ts[sent]);
            service.sendEventBean(Report.of(data, sent), second && sent % 2 == 1 ? "Command" : "Report");
            sent++;
        }
        if (sent == events) {
            service.advanceTime(data.ts[events - 1] + TEXT_END);
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        runtime.destroy();
        return new Part(sent, seconds);
    }

    private static double feed(EPRuntime runtime, Columns data, int events) throws Exception {
        EPEventService service = runtime.getEventService();
        long started = System.nanoTime();
        for (int i = 0; i < events; i++) {
            service.advanceTime(data.ts[i]);
            service.sendEventBean(Report.of(data, i), "Report");
        }
        service.advanceTime(data.ts[events - 1] + 2 * Query.SILENCE);
        double seconds = (System.nanoTime() - started) / 1e9;
        runtime.destroy();
        return seconds;
    }

    @Override
    public long[] latencies(Columns data, int warm, int events, Sink sink) throws Exception {
        EPRuntime runtime = runtime(epl(Query.ANY), new Pairs(sink));
        EPEventService service = runtime.getEventService();
        return Latencies.of(data, warm, events, sink, i -> {
            service.advanceTime(data.ts[i]);
            service.sendEventBean(Report.of(data, i), "Report");
        });
    }
}
