// SPDX-License-Identifier: Apache-2.0
// A Java program of known truth. Usage: Phases serial|lock|consumer|deadlock SECONDS. Run without options for the JVM,
// by default mostly compiled, with -Xint interpreted. `serial` says on its standard output which share of its time it spent
// in `alone`, while the other threads waited.

import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

public class Phases {
    static final Object LOCK = new Object();
    static double shared;

    static double roots(double from, int times) {
        double sum = from;
        for (int i = 0; i < times; i++)
            sum = Math.sqrt(sum + i);
        return sum;
    }

    static double alone(double[] values) {
        double sum = 0;
        for (int round = 0; round < 12; round++)
            for (int i = 0; i < values.length; i++)
                sum += Math.sqrt(values[i] + sum * 1e-9);
        return sum;
    }

    static void serial(long end) {
        double[] values = new double[200_000];
        long together = 0, single = 0;
        while (System.nanoTime() < end) {
            long begun = System.nanoTime();
            IntStream.range(0, values.length).parallel().forEach(i -> values[i] = roots(i, 60));
            long half = System.nanoTime();
            shared += alone(values);
            together += half - begun;
            single += System.nanoTime() - half;
        }
        System.out.printf("%.4f%n", (double) single / (single + together));
    }

    static void locked() {
        synchronized (LOCK) {
            shared = roots(shared, 200_000);
        }
    }

    static void lock(long end) throws Exception {
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                while (System.nanoTime() < end)
                    locked();
            });
            threads[i].start();
        }
        for (Thread thread : threads)
            thread.join();
    }

    static double take(BlockingQueue<Double> queue) throws Exception {
        double sum = 0;
        for (;;) {
            double value = queue.take();
            if (value < 0)
                return sum;
            sum += slowly(value);
        }
    }

    static double slowly(double value) {
        return roots(value, 900_000);
    }

    static void consumer(long end) throws Exception {
        BlockingQueue<Double> queue = new ArrayBlockingQueue<>(4);
        ExecutorService pool = Executors.newFixedThreadPool(2);
        pool.submit(() -> {
            while (System.nanoTime() < end)
                queue.put(roots(1, 300_000));
            queue.put(-1.0);
            return null;
        });
        Future<Double> sum = pool.submit(() -> take(queue));
        shared = sum.get();
        pool.shutdown();
    }

    static void takeBoth(Object mine, Object other) {
        synchronized (mine) {
            try {
                Thread.sleep(200);
            } catch (InterruptedException e) {
                return;
            }
            synchronized (other) {
                System.out.println("never");
            }
        }
    }

    static void deadlock() throws Exception {
        Object one = new Object(), two = new Object();
        Thread first = new Thread(() -> takeBoth(one, two)), second = new Thread(() -> takeBoth(two, one));
        first.start();
        second.start();
        Thread.sleep(500);
        System.out.println("ready");
        first.join();
        second.join();
    }

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments[1]) * 1e9);
        switch (arguments[0]) {
            case "serial" -> serial(end);
            case "lock" -> lock(end);
            case "consumer" -> consumer(end);
            default -> deadlock();
        }
    }
}
