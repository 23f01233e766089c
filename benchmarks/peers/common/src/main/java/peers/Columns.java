package peers;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** A data set: times in microseconds, sensors by number, flow rates. The file is written by bench/data.py. */
public final class Columns {
    private static final long MAGIC = 0x31534c4f4349414bL; // "KAICOLS1"

    public final long[] ts;
    public final int[] sensor;
    public final double[] flow;
    public final String[] names;

    private Columns(int events, int sensors) {
        ts = new long[events];
        sensor = new int[events];
        flow = new double[events];
        names = new String[sensors];
        for (int i = 0; i < sensors; i++) {
            names[i] = String.format("s%05d", i);
        }
    }

    public static Columns read(Path file) throws IOException {
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
            ByteBuffer all = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            all.order(ByteOrder.LITTLE_ENDIAN);
            if (all.getLong() != MAGIC) {
                throw new IOException(file + " is no file of columns");
            }
            int events = Math.toIntExact(all.getLong());
            Columns made = new Columns(events, Math.toIntExact(all.getLong()));
            all.asLongBuffer().get(made.ts);
            all.position(all.position() + 8 * events);
            all.asDoubleBuffer().get(made.flow);
            all.position(all.position() + 8 * events);
            all.asIntBuffer().get(made.sensor);
            return made;
        }
    }

    public int size() {
        return ts.length;
    }
}
