/*
 * Algorithms whose cost by the cells that they read is known, for `parprof input`; tests/unit/test_input_programs.py
 * says which law each must get.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUTINE __attribute__((noinline))

static volatile long sink;
static unsigned long seed = 88172645463325252ul;

static unsigned long chance(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

ROUTINE static long *fresh(long n)
{
    long *out = malloc(n * sizeof *out), at;

    for (at = 0; at < n; at++)
        out[at] = chance() >> 1;
    return out;
}

/* n */
ROUTINE long linear_scan(const long *values, long n)
{
    long at, sum = 0;

    for (at = 0; at < n; at++)
        sum += values[at];
    return sum;
}

/* n: it reads only log2 of the array's cells, and each costs the same */
ROUTINE long binary_search(const long *sorted, long n, long wanted)
{
    long low = 0, high = n;

    while (low < high) {
        long middle = (low + high) / 2;

        if (sorted[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* n log n */
ROUTINE void merge_sort(long *values, long n, long *scratch)
{
    long half = n / 2, left = 0, right = half, at;

    if (n < 2)
        return;
    merge_sort(values, half, scratch);
    merge_sort(values + half, n - half, scratch);
    for (at = 0; at < n; at++)
        scratch[at] = right >= n || (left < half && values[left] <= values[right]) ? values[left++] : values[right++];
    for (at = 0; at < n; at++)
        values[at] = scratch[at];
}

/* n^2 */
ROUTINE void insertion_sort(long *values, long n)
{
    long at, to;

    for (at = 1; at < n; at++) {
        long value = values[at];

        for (to = at; to > 0 && values[to - 1] > value; to--)
            values[to] = values[to - 1];
        values[to] = value;
    }
}

/* n^1.5, n being the cells of both matrices */
ROUTINE void matrix_multiply(const long *a, const long *b, long *c, long side)
{
    long i, j, k;

    for (i = 0; i < side; i++)
        for (j = 0; j < side; j++) {
            long sum = 0;

            for (k = 0; k < side; k++)
                sum += a[i * side + k] * b[k * side + j];
            c[i * side + j] = sum;
        }
}

/* n^1.5: a triangle over the root of what was read */
ROUTINE long triangle(const long *values, long n, long root)
{
    long at, turn, sum = 0;

    for (at = 0; at < n; at++)
        for (sum += values[at], turn = 0; turn < root; turn++)
            sink = turn;
    return sum;
}

/* n */
ROUTINE void insert_all(const long *keys, long n, long *table, long room)
{
    long at;

    for (at = 0; at < n; at++) {
        unsigned long place = (unsigned long)keys[at] % room;

        while (table[place])
            place = (place + 1) % room;
        table[place] = keys[at] | 1;
    }
}

/* no law: two sizes */
ROUTINE long two_sizes(const long *values, long n)
{
    return linear_scan(values, n);
}

/* no law: what it costs has nothing to do with what it reads */
ROUTINE long noise(const long *values, long n)
{
    long at, sum = 0, turns = 1l << chance() % 14;

    for (at = 0; at < n; at++)
        sum += values[at];
    for (at = 0; at < turns + 50 * (long)(chance() % 100); at++)
        sink = at;
    return sum;
}

/* n by trms; its rms is that of the buffer, whatever n is */
ROUTINE long read_rows(int file, long rows)
{
    static long buffer[64] __attribute__((aligned(64)));
    long at, sum = 0;

    for (at = 0; at < rows; at++) {
        if (read(file, buffer, sizeof buffer) != sizeof buffer)
            abort();
        sum += linear_scan(buffer, 64);
    }
    return sum;
}

/* rms log n, trms n: by rms it would seem to grow like 2^n */
ROUTINE long misleading(int file, long n, long extra)
{
    static long buffer[64] __attribute__((aligned(64)));
    long at, sum = 0;

    for (at = 0; at < n; at++) {
        long use = at < extra ? at : 0;

        if (read(file, buffer, sizeof buffer) != sizeof buffer)
            abort();
        sum += *(volatile long *)&buffer[use];
    }
    return sum;
}

int main(void)
{
    int file = open("/dev/zero", O_RDONLY);
    long n, power, root;

    for (n = 16; n <= 1024; n += n / 2) {
        long *values = fresh(n), *scratch = malloc(n * sizeof *scratch), *table = malloc(4 * n * sizeof *table), at;

        sink = linear_scan(values, n);
        sink = two_sizes(values, n < 100 ? 8 : 64);
        sink = noise(values, n);
        for (at = 0; at < 4 * n; at++)
            table[at] = 0;
        insert_all(values, n, table, 4 * n);
        insertion_sort(values, n);
        free(values);
        values = fresh(n);
        merge_sort(values, n, scratch);
        free(values);
        free(scratch);
        free(table);
    }
    for (power = 2; power <= 18; power++) {
        long *sorted = malloc(sizeof *sorted << power), at;

        for (at = 0; at < 1l << power; at++)
            sorted[at] = 2 * at;
        sink = binary_search(sorted, 1l << power, (1l << power) / 3 * 2 + 1);
        free(sorted);
    }
    for (root = 4; root <= 40; root += 4) {
        long *a = fresh(root * root), *b = fresh(root * root), *c = fresh(root * root);

        matrix_multiply(a, b, c, root);
        sink = triangle(a, root * root, root);
        free(a);
        free(b);
        free(c);
    }
    for (n = 2; n <= 300; n += n) {
        sink = read_rows(file, n);
        sink = misleading(file, n, __builtin_ctzl(n));
    }
    return 0;
}
