package peers;

/**
 * Where matches are delivered: it counts them, and adds up a hash of each (its sensor and its events), so that the
 * sum is the same for the same matches in any order. bench/checksum.py does the same arithmetic.
 */
public final class Sink {
    /** What was delivered last: a consumer that reads a match, so that none can be optimised away. */
    public String key;
    public long start;
    public long end;
    public double value;

    public long matches;
    public long checksum;
    /** When a match came, for the one who measures latency. */
    public long when;
    public boolean timed;

    private Columns data;

    public void reset(Columns data) {
        this.data = data;
        matches = checksum = 0;
    }

    public void one(String key, int event, double value) {
        note(key, data.ts[event], data.ts[event], value);
        checksum += mix(mix(data.sensor[event] ^ SEED) ^ event);
    }

    public void pair(String key, int first, int second, double value) {
        note(key, data.ts[first], data.ts[second], value);
        checksum += mix(mix(mix(data.sensor[first] ^ SEED) ^ first) ^ second);
    }

    public void run(String key, int first, int[] others, double value) {
        note(key, data.ts[first], data.ts[others[others.length - 1]], value);
        long hash = mix(mix(data.sensor[first] ^ SEED) ^ first);
        for (int event : others) {
            hash = mix(hash ^ event);
        }
        checksum += hash;
    }

    /** A match of any shape: it is counted. */
    public void any() {
        matches++;
    }

    private void note(String key, long start, long end, double value) {
        this.key = key;
        this.start = start;
        this.end = end;
        this.value = value;
        matches++;
        if (timed) {
            when = System.nanoTime();
        }
    }

    private static final long SEED = 0x9E3779B97F4A7C15L;

    private static long mix(long word) {
        word = (word ^ (word >>> 30)) * 0xBF58476D1CE4E5B9L;
        word = (word ^ (word >>> 27)) * 0x94D049BB133111EBL;
        return word ^ (word >>> 31);
    }
}
