package peers;

/** The queries of bench/pattern.py, by the names that they have there. */
public enum Query {
    FILTER("1"),
    AVERAGE("2"),
    ANY("3 any"),
    NEXT("3 next"),
    LOOP("loop"),
    ABSENCE("absence");

    public static final double LEVEL = 500;
    public static final double RISE = 50;
    public static final long WINDOW = 300_000_000L;
    public static final long SILENCE = 60_000_000L;

    public final String text;

    Query(String text) {
        this.text = text;
    }

    /** The level of the i-th of many queries: from 500 up to 900. */
    public static double level(int i, int queries) {
        return LEVEL + 400.0 * i / queries;
    }

    public static Query of(String text) {
        for (Query each : values()) {
            if (each.text.equals(text)) {
                return each;
            }
        }
        throw new IllegalArgumentException("no query is named " + text);
    }
}
