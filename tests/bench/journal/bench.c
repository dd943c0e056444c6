/* Durable records a second at several sizes of a group commit: CSV lines `name,value,unit,ratio,against`.
 *
 * Against the least that durability costs: the same bytes appended to one file with write, then fdatasync. Both sides take
 * turns, and the ratio is the median of the turns' ratios.
 */
#include "common/journal/journal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORD = 256, TURNS = 9, COUNT_MAX = 1024 };

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "journal_bench: %s failed\n", what);
    exit(1);
}

static unsigned char record[RECORD];

static double seconds_journal(k2_journal *j, int count, int commits)
{
    k2_error err;
    uint64_t start = k2_now_ns();
    for (int i = 0; i < commits; i++) {
        for (int r = 0; r < count; r++) must(k2_journal_append(j, 1, record, RECORD, NULL, &err) == K2_OK, "append");
        must(k2_journal_commit(j, &err) == K2_OK, "commit");
    }
    uint64_t ns = k2_now_ns() - start;
    must(k2_journal_truncate_before(j, k2_journal_next_seq(j), &err) == K2_OK, "truncate"); /* the map stays small */
    return (double)ns * 1e-9;
}

static double seconds_file(int fd, int count, int commits)
{
    static unsigned char group[COUNT_MAX * RECORD];
    uint64_t start = k2_now_ns();
    for (int i = 0; i < commits; i++) {
        for (int r = 0; r < count; r++) memcpy(group + r * RECORD, record, RECORD);
        size_t bytes = (size_t)count * RECORD;
        must(write(fd, group, bytes) == (ssize_t)bytes && fdatasync(fd) == 0, "write and fdatasync");
    }
    uint64_t ns = k2_now_ns() - start;
    must(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0, "truncating the file");
    return (double)ns * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, TURNS, sizeof *v, by_value);
    return v[TURNS / 2];
}

int main(void)
{
    static const int counts[] = {1, 32, COUNT_MAX};
    char dir[] = "/tmp/k2_journal_bench_XXXXXX", path[64];
    k2_journal *j;
    k2_error err;
    must(mkdtemp(dir) != NULL, "mkdtemp");
    must(k2_journal_open(&(k2_journal_config){.dir = dir, .map_bytes = 256u << 20}, &j, &err) == K2_OK, "opening");
    snprintf(path, sizeof path, "%s/plain", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    must(fd >= 0, "opening the file");
    for (size_t i = 0; i < K2_COUNT(counts); i++) {
        double rate[TURNS], ratio[TURNS];
        int count = counts[i], commits = count == COUNT_MAX ? 8 : 64;
        seconds_journal(j, count, 2);
        for (int turn = 0; turn < TURNS; turn++) {
            double ours = seconds_journal(j, count, commits), file = seconds_file(fd, count, commits);
            rate[turn] = count * commits / ours;
            ratio[turn] = file / ours;
        }
        printf("journal_commit_%d,%.0f,records/s,%.3f,write and fdatasync\n", count, median(rate), median(ratio));
    }
    close(fd);
    k2_journal_close(j);
    return k2_dir_remove(dir, &err) == K2_OK ? 0 : 1;
}
