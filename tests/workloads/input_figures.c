/* The programs of coppa-2013's figures 1 to 3, for `parprof input`: sizes of input that are known exactly. */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long x __attribute__((aligned(64)));
static long result __attribute__((aligned(64)));
static sem_t turn_of_writer, turn_of_reader, g_wanted, g_done;

#define ROUTINE __attribute__((noinline))

/* Figure 2: n values through one cell. */
ROUTINE void produce_data(long value)
{
    *(volatile long *)&x = value;
}

ROUTINE long consume_data(void)
{
    return *(volatile long *)&x;
}

ROUTINE void producer(long n)
{
    long at;

    for (at = 0; at < n; at++) {
        sem_wait(&turn_of_writer);
        produce_data(at);
        sem_post(&turn_of_reader);
    }
}

ROUTINE long consumer(long n)
{
    long at, sum = 0;

    for (at = 0; at < n; at++) {
        sem_wait(&turn_of_reader);
        sum += consume_data();
        sem_post(&turn_of_writer);
    }
    return sum;
}

static void *producing_thread(void *n)
{
    producer((long)n);
    return 0;
}

/* Figure 1a: f reads x, g in another thread writes it, f reads it again. */
ROUTINE void g(long value)
{
    *(volatile long *)&x = value;
}

static void *thread_of_g(void *unused)
{
    long at;

    (void)unused;
    for (at = 0; at < 2; at++) {
        sem_wait(&g_wanted);
        g(7);
        sem_post(&g_done);
    }
    return 0;
}

ROUTINE void let_g_write(void)
{
    sem_post(&g_wanted);
    sem_wait(&g_done);
}

ROUTINE long figure_1a(void)
{
    long first = *(volatile long *)&x;

    let_g_write();
    return first + *(volatile long *)&x;
}

/* Figure 1b: the second read is by h, the third by f again. */
ROUTINE long h(void)
{
    return *(volatile long *)&x;
}

ROUTINE long figure_1b(void)
{
    long first = *(volatile long *)&x, second;

    let_g_write();
    second = h();
    return first + second + *(volatile long *)&x;
}

/* Figure 3: two values are loaded each time, one is used. */
ROUTINE long external_read(int file, long n)
{
    static long buffer[2] __attribute__((aligned(64)));
    long at, sum = 0;

    for (at = 0; at < n; at++) {
        if (read(file, buffer, sizeof buffer) != sizeof buffer)
            abort();
        sum += *(volatile long *)buffer;
    }
    return sum;
}

/* Two threads write one cell in turn, and each reads what the other wrote. */
ROUTINE long take_turns(sem_t *mine, sem_t *others, long n)
{
    long at, sum = 0;

    for (at = 0; at < n; at++) {
        sem_wait(mine);
        sum += *(volatile long *)&x;
        *(volatile long *)&x = at;
        sem_post(others);
    }
    return sum;
}

static void *other_in_turn(void *n)
{
    return (void *)take_turns(&turn_of_reader, &turn_of_writer, (long)n);
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 1000;
    int file = open("/dev/zero", O_RDONLY);
    pthread_t thread;

    sem_init(&turn_of_writer, 0, 1);
    sem_init(&turn_of_reader, 0, 0);
    sem_init(&g_wanted, 0, 0);
    sem_init(&g_done, 0, 0);
    x = 0;
    pthread_create(&thread, 0, producing_thread, (void *)n);
    result = consumer(n);
    pthread_join(thread, 0);
    pthread_create(&thread, 0, thread_of_g, 0);
    result += figure_1a();
    result += figure_1b();
    pthread_join(thread, 0);
    result += external_read(file, n / 2);
    x = 1;
    pthread_create(&thread, 0, other_in_turn, (void *)n);
    result += take_turns(&turn_of_writer, &turn_of_reader, n);
    pthread_join(thread, 0);
    printf("%ld\n", result);
    return 0;
}
