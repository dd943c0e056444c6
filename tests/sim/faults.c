/* faults: names, and lists as text. See faults_int.h. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults_int.h"

typedef struct kind {
    const char *name, *text;
    uint32_t chance;
} kind;

static const kind kinds[SIM_FAULT_KINDS] = {
#define K2_X(kind, name, chance, text) {name, text, chance},
    SIM_FAULTS(K2_X)
#undef K2_X
};

const char *sim_fault_name(sim_fault_kind k)
{
    return kinds[k].name;
}

const char *sim_fault_text(sim_fault_kind k)
{
    return kinds[k].text;
}

uint32_t sim_fault_chance(sim_fault_kind k)
{
    return kinds[k].chance;
}

void sim_hits_print(const sim_hit *hits, size_t count, k2_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        char who[16] = "master";
        if (hits[i].who != SIM_MASTER) snprintf(who, sizeof who, "%u", hits[i].who);
        k2_buf_printf(out, "%s%s:%s:%u", i ? "," : "", kinds[hits[i].kind].name, who, hits[i].nth);
    }
    if (count == 0) k2_buf_puts(out, "none");
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = sim_hit_key(a), y = sim_hit_key(b);
    return x < y ? -1 : x > y;
}

static k2_code parse_one(const char *word, sim_hit *out, k2_error *err)
{
    char name[32] = "", who[16] = "", nth[16] = "", more;
    uint64_t w = SIM_MASTER, n;
    if (sscanf(word, "%31[^:]:%15[^:]:%15[^:]%c", name, who, nth, &more) != 3)
        return k2_error_set(err, K2_BAD_INPUT, "--faults: found '%s', expected KIND:WORKER:N", word);
    *out = (sim_hit){.kind = SIM_FAULT_KINDS};
    for (uint8_t k = 0; k < SIM_FAULT_KINDS; k++)
        if (strcmp(name, kinds[k].name) == 0) out->kind = k;
    if (out->kind == SIM_FAULT_KINDS) return k2_error_set(err, K2_BAD_INPUT, "--faults: no kind of fault is called '%s'", name);
    if ((strcmp(who, "master") != 0 && !k2_str_u64(who, &w)) || w > SIM_MASTER)
        return k2_error_set(err, K2_BAD_INPUT, "--faults: '%s' names no worker; expected a number or master", word);
    if (!k2_str_u64(nth, &n) || n > UINT32_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "--faults: '%s' ends in no number of an opportunity", word);
    out->who = (uint8_t)w;
    out->nth = (uint32_t)n;
    return K2_OK;
}

static void drop_comments(char *text)
{
    bool comment = false;
    for (; *text; text++) {
        comment = *text == '#' || (comment && *text != '\n');
        if (comment || isspace((unsigned char)*text)) *text = comment ? ' ' : ',';
    }
}

k2_code sim_hits_parse(const char *text, sim_hit *hits, size_t max, size_t *count, k2_error *err)
{
    size_t n = 0, len;
    char *copy;
    k2_code code = K2_OK;
    if (text[0] == '@')
        code = k2_file_read(text + 1, 1u << 24, &copy, &len, err);
    else
        copy = k2_strdup(text);
    if (code != K2_OK) return code;
    drop_comments(copy);
    char *rest = copy;
    for (char *word; code == K2_OK && (word = strsep(&rest, ", "));) {
        if (!*word || strcmp(word, "none") == 0) continue;
        code = n == max ? k2_error_set(err, K2_LIMIT, "--faults: more than %zu", max) : parse_one(word, &hits[n++], err);
    }
    k2_free(copy);
    if (code != K2_OK) return code;
    qsort(hits, n, sizeof *hits, by_key);
    *count = n;
    return K2_OK;
}
