/* The operations: what goes into a slot in each round, and what is made of what the others put into theirs. */
#include "common/coll/coll_int.h"

#include <string.h>

#define SUM_BLOCK 2048u /* elements that stay in the level 1 cache while lane after lane is added to them */

/* ---- arguments ---------------------------------------------------------------------------------------------------- */

static k2_code ranges_check(const k2_coll *c, const k2_coll_range *ranges, uint64_t count, k2_error *err)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < c->ranks; i++) {
        if (ranges[i].begin < at || ranges[i].end < ranges[i].begin || ranges[i].end > count)
            return k2_error_set(
                err, K2_BAD_INPUT,
                "coll: the range of rank %u is %llu to %llu, expected ascending ranges without overlap up to %llu", i,
                (unsigned long long)ranges[i].begin, (unsigned long long)ranges[i].end, (unsigned long long)count);
        at = ranges[i].end;
    }
    return K2_OK;
}

static uint64_t ranges_longest(const k2_coll *c, const k2_coll_range *ranges)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < c->ranks; i++) longest = K2_MAX(longest, ranges[i].end - ranges[i].begin);
    return longest;
}

/* Part of a range that is the business of one round: `each` elements, fewer at the end, none afterwards. */
static k2_coll_range range_part(k2_coll_range range, uint64_t round, uint64_t each)
{
    uint64_t begin = range.begin + K2_MIN(round * each, range.end - range.begin);
    return (k2_coll_range){.begin = begin, .end = K2_MIN(begin + each, range.end)};
}

/* ---- sums over lanes ----------------------------------------------------------------------------------------------- */

/* out[i] = ((lane_0[i] + lane_1[i]) + lane_2[i]) + ...; the first lane is copied, not added to 0, which would turn -0 into +0.
 */
static void lanes_sum(const float *const *lanes, uint32_t count, uint64_t elements, float *out)
{
    for (uint64_t at = 0; at < elements; at += SUM_BLOCK) {
        uint64_t n = K2_MIN((uint64_t)SUM_BLOCK, elements - at);
        float *restrict to = out + at;
        memcpy(to, lanes[0] + at, n * sizeof *to);
        for (uint32_t l = 1; l < count; l++) {
            const float *restrict from = lanes[l] + at;
            for (uint64_t i = 0; i < n; i++) to[i] += from[i];
        }
    }
}

/* A slot's data in reduce-scatter: one part per peer in rank order (the writer's own is left out), in it one run of elements
 * per lane. */
typedef struct parts {
    uint64_t each;  /* elements of one lane in one part */
    uint64_t bytes; /* of a part */
    uint32_t lanes; /* of one rank */
} parts;

static uint64_t part_at(const parts *p, uint32_t writer, uint32_t reader)
{
    return (reader < writer ? reader : reader - 1) * p->bytes;
}

static void parts_write(k2_coll *c, const parts *p, const float *const *lanes, const k2_coll_range *ranges, uint64_t round)
{
    unsigned char *data = k2i_round_data(c);
    for (uint32_t reader = 0; reader < c->ranks; reader++) {
        if (reader == c->rank) continue;
        k2_coll_range part = range_part(ranges[reader], round, p->each);
        uint64_t bytes = (part.end - part.begin) * sizeof(float);
        unsigned char *to = data + part_at(p, c->rank, reader);
        for (uint32_t l = 0; l < p->lanes; l++) memcpy(to + l * bytes, lanes[l] + part.begin, bytes);
    }
}

/* Pointers to this rank's part of every lane, in lane order: own ones where they are, the others' where they can be read. */
static k2_code parts_view(k2_coll *c, const k2i_op *op, const parts *p, const float *const *own, k2_coll_range part,
                          const float **all, k2_error *err)
{
    uint64_t n = part.end - part.begin;
    for (uint32_t writer = 0; writer < c->ranks; writer++) {
        const float *first = NULL;
        if (writer != c->rank) {
            const void *at;
            unsigned char *to = c->scratch == NULL ? NULL : c->scratch + part_at(p, c->rank, writer);
            k2_code code =
                k2i_round_view(c, op, writer, part_at(p, writer, c->rank), p->lanes * n * sizeof(float), to, &at, err);
            if (code != K2_OK) return code;
            first = at;
        }
        for (uint32_t l = 0; l < p->lanes; l++)
            all[writer * p->lanes + l] = writer == c->rank ? own[l] + part.begin : first + l * n;
    }
    return K2_OK;
}

static void scratch_need(k2_coll *c)
{
    bool needed = false;
    for (uint32_t i = 0; i < c->ranks; i++) needed |= i != c->rank && c->maps[i] == NULL;
    if (needed && c->scratch == NULL) c->scratch = k2_alloc_aligned(64, c->bytes_max);
}

k2_code k2_coll_reduce_scatter_lanes(k2_coll *c, const float *const *lanes, uint32_t lanes_local, uint64_t count,
                                     const k2_coll_range *ranges, float *out, k2_error *err)
{
    const float *all[K2_COLL_LANES_MAX];
    uint64_t total = (uint64_t)lanes_local * c->ranks;
    if (lanes_local == 0 || total > K2_COLL_LANES_MAX)
        return k2_error_set(err, K2_LIMIT, "coll: %llu lanes, expected 1 to %u", (unsigned long long)total, K2_COLL_LANES_MAX);
    k2_code code = ranges_check(c, ranges, count, err);
    if (code != K2_OK) return code;
    k2_coll_range mine = ranges[c->rank];
    if (c->ranks == 1) {
        for (uint32_t l = 0; l < lanes_local; l++) all[l] = lanes[l] + mine.begin;
        lanes_sum(all, lanes_local, mine.end - mine.begin, out);
        return k2i_alone(c, err);
    }

    /* Parts begin at multiples of 64 bytes, so that sums run over aligned memory. */
    parts p = {.lanes = lanes_local};
    p.bytes = c->bytes_max / (c->ranks - 1) / 64 * 64;
    p.each = p.bytes / (lanes_local * sizeof(float));
    if (p.each == 0)
        return k2_error_set(err, K2_LIMIT, "coll: a staging area of %llu bytes does not hold %u lanes for %u ranks",
                            (unsigned long long)c->bytes_max, lanes_local, c->ranks);
    k2i_op op;
    uint64_t shape = k2_hash64(ranges, c->ranks * sizeof *ranges, lanes_local);
    code = k2i_op_begin(c, K2_FLIGHT_COLL_REDUCE_SCATTER, count * sizeof(float), shape, &op, err);
    if (code != K2_OK) return code;
    scratch_need(c);
    uint64_t rounds = K2_MAX((ranges_longest(c, ranges) + p.each - 1) / p.each, (uint64_t)1);
    for (uint64_t round = 0; round < rounds; round++) {
        k2_coll_range part = range_part(mine, round, p.each);
        if (round > 0) c->round++;
        parts_write(c, &p, lanes, ranges, round);
        code = k2i_round_meet(c, &op, err);
        if (code == K2_OK && part.end > part.begin) {
            code = parts_view(c, &op, &p, lanes, part, all, err);
            if (code == K2_OK) lanes_sum(all, (uint32_t)total, part.end - part.begin, out + (part.begin - mine.begin));
        }
        if (code != K2_OK) return k2i_op_end(c, code);
        k2i_round_end(c);
    }
    return k2i_op_end(c, K2_OK);
}

/* ---- gathers ------------------------------------------------------------------------------------------------------- */

/* `ranges` count bytes here. */
static k2_code gather(k2_coll *c, k2i_kind kind, unsigned char *buf, uint64_t bytes, const k2_coll_range *ranges, k2_error *err)
{
    k2i_op op;
    if (c->ranks == 1) return k2i_alone(c, err);
    uint64_t shape = k2_hash64(ranges, c->ranks * sizeof *ranges, 0);
    k2_code code = k2i_op_begin(c, kind, bytes, shape, &op, err);
    if (code != K2_OK) return code;
    uint64_t rounds = K2_MAX((ranges_longest(c, ranges) + c->bytes_max - 1) / c->bytes_max, (uint64_t)1);
    for (uint64_t round = 0; round < rounds; round++) {
        if (round > 0) c->round++;
        k2_coll_range own = range_part(ranges[c->rank], round, c->bytes_max);
        if (own.end > own.begin) memcpy(k2i_round_data(c), buf + own.begin, own.end - own.begin);
        code = k2i_round_meet(c, &op, err);
        for (uint32_t peer = 0; peer < c->ranks && code == K2_OK; peer++) {
            k2_coll_range part = range_part(ranges[peer], round, c->bytes_max);
            if (peer != c->rank && part.end > part.begin)
                code = k2i_round_fetch(c, &op, peer, 0, part.end - part.begin, buf + part.begin, err);
        }
        if (code != K2_OK) return k2i_op_end(c, code);
        k2i_round_end(c);
    }
    return k2i_op_end(c, K2_OK);
}

k2_code k2_coll_all_gather(k2_coll *c, void *buf, uint32_t elem_bytes, uint64_t count, const k2_coll_range *ranges,
                           k2_error *err)
{
    k2_coll_range in_bytes[K2_COLL_RANKS_MAX];
    k2_code code = ranges_check(c, ranges, count, err);
    if (code != K2_OK) return code;
    for (uint32_t i = 0; i < c->ranks; i++)
        in_bytes[i] = (k2_coll_range){.begin = ranges[i].begin * elem_bytes, .end = ranges[i].end * elem_bytes};
    return gather(c, K2_FLIGHT_COLL_ALL_GATHER, buf, count * elem_bytes, in_bytes, err);
}

k2_code k2_coll_all_gather_bytes(k2_coll *c, const void *mine, uint64_t bytes, void *all, k2_error *err)
{
    k2_coll_range places[K2_COLL_RANKS_MAX];
    for (uint32_t i = 0; i < c->ranks; i++) places[i] = (k2_coll_range){.begin = i * bytes, .end = (i + 1) * bytes};
    if (bytes > 0) memmove((unsigned char *)all + places[c->rank].begin, mine, bytes);
    return gather(c, K2_FLIGHT_COLL_ALL_GATHER_BYTES, all, bytes, places, err);
}

k2_code k2_coll_all_gather_f64(k2_coll *c, const double *mine, uint32_t n, double *all, k2_error *err)
{
    return k2_coll_all_gather_bytes(c, mine, n * sizeof *mine, all, err);
}

/* ---- broadcast and barrier ----------------------------------------------------------------------------------------- */

k2_code k2_coll_broadcast(k2_coll *c, uint32_t root, void *buf, uint64_t bytes, k2_error *err)
{
    k2i_op op;
    if (root >= c->ranks) return k2_error_set(err, K2_BAD_INPUT, "coll: broadcast from rank %u of %u", root, c->ranks);
    if (c->ranks == 1) return k2i_alone(c, err);
    k2_code code = k2i_op_begin(c, K2_FLIGHT_COLL_BROADCAST, bytes, root, &op, err);
    if (code != K2_OK) return code;
    uint64_t rounds = K2_MAX((bytes + c->bytes_max - 1) / c->bytes_max, (uint64_t)1);
    for (uint64_t round = 0; round < rounds; round++) {
        k2_coll_range part = range_part((k2_coll_range){.end = bytes}, round, c->bytes_max);
        uint64_t n = part.end - part.begin;
        unsigned char *at = (unsigned char *)buf + part.begin;
        if (round > 0) c->round++;
        if (c->rank == root && n > 0) memcpy(k2i_round_data(c), at, n);
        code = k2i_round_meet(c, &op, err);
        if (code == K2_OK && c->rank != root && n > 0) code = k2i_round_fetch(c, &op, root, 0, n, at, err);
        if (code != K2_OK) return k2i_op_end(c, code);
        k2i_round_end(c);
    }
    return k2i_op_end(c, K2_OK);
}

k2_code k2_coll_barrier(k2_coll *c, k2_error *err)
{
    k2i_op op;
    if (c->ranks == 1) return k2i_alone(c, err);
    k2_code code = k2i_op_begin(c, K2_FLIGHT_COLL_BARRIER, 0, 0, &op, err);
    if (code != K2_OK) return code;
    code = k2i_round_meet(c, &op, err);
    if (code == K2_OK) k2i_round_end(c);
    return k2i_op_end(c, code);
}
