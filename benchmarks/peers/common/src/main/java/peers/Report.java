package peers;

/** An airflow report. `index` is its place in the data, which is its `seq` in kaicep. */
public final class Report {
    public int index;
    public String sensorID;
    public double flowrate;
    public long ts;

    public Report() {}

    public Report(int index, String sensorID, double flowrate, long ts) {
        this.index = index;
        this.sensorID = sensorID;
        this.flowrate = flowrate;
        this.ts = ts;
    }

    public static Report of(Columns data, int index) {
        return new Report(index, data.names[data.sensor[index]], data.flow[index], data.ts[index]);
    }

    public int getIndex() {
        return index;
    }

    public String getSensorID() {
        return sensorID;
    }

    public double getFlowrate() {
        return flowrate;
    }

    public long getTs() {
        return ts;
    }
}
