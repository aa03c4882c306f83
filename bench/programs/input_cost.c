/* Small programs in one, for bench/input.py: `input_cost NAME TIMES`; those whose name begins with omp_ have threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUTINE __attribute__((noinline))

static volatile double sink;
static unsigned long seed = 88172645463325252ul;

static unsigned long chance(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

ROUTINE static void triad(double *a, const double *b, const double *c, long n, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (long at = 0; at < n; at++)
        a[at] = b[at] + 3.0 * c[at];
}

ROUTINE static long fib(long n)
{
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

static long counts[64];

ROUTINE static long fib_counted(long n)
{
    counts[n]++;
    return n < 2 ? n : fib_counted(n - 1) + fib_counted(n - 2);
}

ROUTINE static void quicksort(long *values, long n)
{
    while (n > 1) {
        long pivot = values[n / 2], low = 0, high = n - 1;

        while (low <= high) {
            while (values[low] < pivot)
                low++;
            while (values[high] > pivot)
                high--;
            if (low <= high) {
                long kept = values[low];

                values[low++] = values[high];
                values[high--] = kept;
            }
        }
        quicksort(values, high + 1);
        values += low;
        n -= low;
    }
}

ROUTINE static void quicksort_tasks(long *values, long n)
{
    long pivot = values[n / 2], low = 0, high = n - 1;

    if (n < 2000) {
        quicksort(values, n);
        return;
    }
    while (low <= high) {
        while (values[low] < pivot)
            low++;
        while (values[high] > pivot)
            high--;
        if (low <= high) {
            long kept = values[low];

            values[low++] = values[high];
            values[high--] = kept;
        }
    }
#pragma omp task
    quicksort_tasks(values, high + 1);
#pragma omp task
    quicksort_tasks(values + low, n - low);
#pragma omp taskwait
}

ROUTINE static void multiply(const double *a, const double *b, double *c, long side, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < side; i++)
        for (long j = 0; j < side; j++) {
            double sum = 0;

            for (long k = 0; k < side; k++)
                sum += a[i * side + k] * b[k * side + j];
            c[i * side + j] = sum;
        }
}

struct node {
    struct node *left, *right;
    long key;
};

ROUTINE static struct node *insert(struct node *tree, long key)
{
    if (!tree) {
        tree = calloc(1, sizeof *tree);
        tree->key = key;
    } else if (key < tree->key) {
        tree->left = insert(tree->left, key);
    } else {
        tree->right = insert(tree->right, key);
    }
    return tree;
}

ROUTINE static long count_words(const char *text, long n, long *table)
{
    unsigned long hash = 5381;
    long words = 0;

    for (long at = 0; at < n; at++) {
        if (text[at] == ' ') {
            table[hash % 4093]++;
            hash = 5381;
            words++;
        } else {
            hash = hash * 33 + text[at];
        }
    }
    return words;
}

enum { HASH_ROOM = 1 << 21 };

/* Open addressing: each key somewhere else. */
ROUTINE static long insert_keys(unsigned long *table, long n)
{
    long probes = 0;

    for (long at = 0; at < n; at++) {
        unsigned long key = chance() | 1, place = key * 0x9e3779b97f4a7c15ul >> 43;

        for (; table[place]; place = (place + 1) % HASH_ROOM)
            probes++;
        table[place] = key;
    }
    return probes;
}

ROUTINE static void stencil(double *to, const double *from, long n, int threads)
{
#pragma omp parallel for num_threads(threads)
    for (long at = 1; at < n - 1; at++)
        to[at] = 0.25 * from[at - 1] + 0.5 * from[at] + 0.25 * from[at + 1];
}

static long *randoms(long n)
{
    long *out = malloc(n * sizeof *out);

    for (long at = 0; at < n; at++)
        out[at] = chance() >> 1;
    return out;
}

static double *numbers(long n)
{
    double *out = malloc(n * sizeof *out);

    for (long at = 0; at < n; at++)
        out[at] = at;
    return out;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    long times = argc > 2 ? atol(argv[2]) : 1;
    int threads = strncmp(name, "omp_", 4) ? 1 : 2;
    const char *what = threads > 1 ? name + 4 : name;

    if (!strcmp(what, "triad")) {
        double *a = numbers(1 << 20), *b = numbers(1 << 20), *c = numbers(1 << 20);

        for (long at = 0; at < 20 * times; at++)
            triad(a, b, c, 1 << 20, threads);
    } else if (!strcmp(what, "fib")) {
        for (long at = 0; at < times; at++)
            sink = fib(30);
    } else if (!strcmp(what, "fib_counted")) {
        for (long at = 0; at < times; at++)
            sink = fib_counted(27);
    } else if (!strcmp(what, "quicksort")) {
        for (long at = 0; at < times; at++) {
            long *values = randoms(1000000);

#pragma omp parallel num_threads(threads)
#pragma omp single
            threads > 1 ? quicksort_tasks(values, 1000000) : quicksort(values, 1000000);
            free(values);
        }
    } else if (!strcmp(what, "matrix")) {
        double *a = numbers(160 * 160), *b = numbers(160 * 160), *c = numbers(160 * 160);

        for (long at = 0; at < 5 * times; at++)
            multiply(a, b, c, 160, threads);
    } else if (!strcmp(what, "tree")) {
        for (long at = 0; at < times; at++) {
            struct node *tree = 0;

            for (long key = 0; key < 40000; key++)
                tree = insert(tree, chance() >> 1);
            sink = tree->key;
        }
    } else if (!strcmp(what, "words")) {
        char *text = malloc(1 << 24);
        static long table[4096];

        for (long at = 0; at < 1 << 24; at++)
            text[at] = chance() % 6 ? 'a' + chance() % 26 : ' ';
        for (long at = 0; at < times; at++)
            sink = count_words(text, 1 << 24, table);
    } else if (!strcmp(what, "hash")) {
        unsigned long *table = malloc(HASH_ROOM * sizeof *table);

        for (long at = 0; at < times; at++) {
            memset(table, 0, HASH_ROOM * sizeof *table);
            sink = insert_keys(table, HASH_ROOM / 2);
        }
    } else if (!strcmp(what, "stencil")) {
        double *a = numbers(1 << 20), *b = numbers(1 << 20);

        for (long at = 0; at < 12 * times; at++)
            stencil(a, b, 1 << 20, threads);
    } else {
        fprintf(stderr, "no program %s\n", name);
        return 2;
    }
    return 0;
}
