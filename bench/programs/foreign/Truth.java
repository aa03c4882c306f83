// SPDX-License-Identifier: Apache-2.0
// Phases of known truth in Java: two workers of a ForkJoinPool work, then the first thread. The work is C's, which logs it
// (truth_calls.c). Usage: Truth LIBRARY
import java.util.concurrent.ForkJoinPool;
import java.util.stream.IntStream;

public class Truth {
    static final int ROUNDS = 50;
    static final long UNIT_NS = 20_000_000;

    static native void begin();

    static native void serial(long cpuNs);

    static native void shared(long cpuNs);

    static native void end();

    public static void main(String[] args) throws Exception {
        System.load(args[0]);
        begin();
        ForkJoinPool pool = new ForkJoinPool(2);
        for (int round = 0; round < ROUNDS; round++) {
            pool.submit(() -> IntStream.range(0, 2).parallel().forEach(i -> shared(UNIT_NS))).get();
            serial(UNIT_NS);
        }
        end();
    }
}
