package peers;

import java.io.Serializable;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Flink CEP in a mini cluster, one of everything, with object reuse. It counts in milliseconds, so that it is told
 * microseconds and takes them for that; nothing but the unit is different. Its `within` is exclusive: hence the one
 * more. The time is that from the first event at the source to the end of the job.
 *
 * <p>Query 2 is no pattern: a keyed function with the window in its state, as one writes it with Flink.
 */
public final class Main implements Peer {
    // A job is serialised on its way to the cluster, which is this process: data and sink are reached by name.
    private static Columns data;
    private static Sink sink;
    private static volatile long started;

    public static void main(String[] arguments) throws Exception {
        Harness.main(new Main(), arguments);
    }

    @Override
    public String name() {
        return "Flink CEP";
    }

    @Override
    public String version() {
        return "2.3.0";
    }

    @Override
    public double run(Query query, Columns data, int events, Sink sink) throws Exception {
        Main.data = data;
        Main.sink = sink;
        started = 0;
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        environment.getConfig().enableObjectReuse();
        DataStream<Report> reports = environment
                .fromSource(new NumberSequenceSource(0, events - 1), WatermarkStrategy.noWatermarks(), "indices")
                .map(Main::report)
                .returns(TypeInformation.of(Report.class))
                .assignTimestampsAndWatermarks(WatermarkStrategy.<Report>forMonotonousTimestamps()
                        .withTimestampAssigner((report, before) -> report.ts));
        DataStream<Integer> out = switch (query) {
            case FILTER -> reports.filter(report -> report.flowrate > Query.LEVEL).map(Main::deliver);
            case AVERAGE -> byKey(reports).process(new Average());
            default -> CEP.pattern(byKey(reports), pattern(query)).process(new Deliver(query));
        };
        out.sinkTo(new DiscardingSink<>());
        environment.execute();
        return (System.nanoTime() - started) / 1e9;
    }

    private static Report report(long index) {
        if (started == 0) {
            started = System.nanoTime();
        }
        return Report.of(data, (int) index);
    }

    private static int deliver(Report report) {
        sink.one(report.sensorID, report.index, report.flowrate);
        return report.index;
    }

    private static KeyedStream<Report, String> byKey(DataStream<Report> reports) {
        return reports.keyBy(report -> report.sensorID);
    }

    private static Pattern<Report, ?> pattern(Query query) {
        AfterMatchSkipStrategy all = AfterMatchSkipStrategy.noSkip();
        Duration fiveMinutes = Duration.ofMillis(Query.WINDOW + 1);
        return switch (query) {
            case ANY -> Pattern.<Report>begin("a", all).where(SimpleCondition.of(Main::isHigh))
                    .followedByAny("b").where(new Rise()).within(fiveMinutes);
            case NEXT -> Pattern.<Report>begin("a", all).where(SimpleCondition.of(Main::isHigh))
                    .followedBy("b").where(new Rise()).within(fiveMinutes);
            case LOOP -> Pattern.<Report>begin("a", all)
                    .next("b").where(new Climb()).oneOrMore().consecutive().within(fiveMinutes);
            case ABSENCE -> Pattern.<Report>begin("a", all)
                    .notFollowedBy("b").within(Duration.ofMillis(Query.SILENCE + 1));
            default -> throw new UnsupportedOperationException(query.text);
        };
    }

    private static boolean isHigh(Report report) {
        return report.flowrate > Query.LEVEL;
    }

    /** Whether a report is higher than the first by enough. */
    private static final class Rise extends IterativeCondition<Report> {
        @Override
        public boolean filter(Report report, Context<Report> context) throws Exception {
            for (Report first : context.getEventsForPattern("a")) {
                return report.flowrate - first.flowrate > Query.RISE;
            }
            return false;
        }
    }

    /** Whether a report is higher than the one before it. */
    private static final class Climb extends IterativeCondition<Report> {
        @Override
        public boolean filter(Report report, Context<Report> context) throws Exception {
            Report before = null;
            for (Report each : context.getEventsForPattern("b")) {
                before = each;
            }
            if (before == null) {
                before = context.getEventsForPattern("a").iterator().next();
            }
            return report.flowrate > before.flowrate;
        }
    }

    /** Gives a match to the sink. */
    private static final class Deliver extends PatternProcessFunction<Report, Integer> {
        private final Query query;

        Deliver(Query query) {
            this.query = query;
        }

        @Override
        public void processMatch(Map<String, List<Report>> match, Context context, Collector<Integer> out) {
            Report first = match.get("a").get(0);
            if (query == Query.ABSENCE) {
                sink.one(first.sensorID, first.index, first.flowrate);
                return;
            }
            List<Report> others = match.get("b");
            Report last = others.get(others.size() - 1);
            if (query == Query.LOOP) {
                int[] indices = others.stream().mapToInt(each -> each.index).toArray();
                sink.run(first.sensorID, first.index, indices, last.flowrate);
            } else {
                sink.pair(first.sensorID, first.index, last.index, last.flowrate);
            }
        }
    }

    /** The reports of a sensor in the last five minutes, and their sum. */
    public static final class Window implements Serializable {
        public final ArrayDeque<double[]> reports = new ArrayDeque<>();
        public double sum;
    }

    /** The sliding average of each sensor. */
    private static final class Average extends KeyedProcessFunction<String, Report, Integer> {
        private transient ValueState<Window> state;

        @Override
        public void open(OpenContext context) {
            state = getRuntimeContext().getState(new ValueStateDescriptor<>("window", Window.class));
        }

        @Override
        public void processElement(Report report, Context context, Collector<Integer> out) throws Exception {
            Window window = state.value();
            if (window == null) {
                window = new Window();
            }
            window.reports.addLast(new double[] {report.ts, report.flowrate});
            window.sum += report.flowrate;
            while (window.reports.getFirst()[0] <= report.ts - Query.WINDOW) {
                window.sum -= window.reports.removeFirst()[1];
            }
            state.update(window);
            double average = window.sum / window.reports.size();
            if (average > Query.LEVEL) {
                sink.one(report.sensorID, report.index, average);
            }
        }
    }
}
