/* find: a run's papers, and who holds its lock. */
#include "master/find_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char k2m_process_state(uint64_t pid)
{
    char path[64], text[512];
    if (pid == 0) return 0;
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* the name in front of it may hold anything */
    return end && end[1] == ' ' ? end[2] : 0;
}

/* Papers first: opening the journal of a directory that is none would make one. */
static k2_code read_papers(const char *dir, k2m_found *out, k2_error *err)
{
    char *manifest = k2_asprintf("%s/manifest.json", dir), *config = k2_asprintf("%s/config.json", dir);
    char *data = k2_asprintf("%s/journal/data.mdb", dir);
    k2_code code = K2_OK;
    if (!k2_file_exists(manifest) || !k2_file_exists(data))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: no run is here (manifest.json and journal/data.mdb expected)", dir);
    k2_config_defaults(&out->config);
    if (code == K2_OK) code = k2_config_load(&out->config, config, err);
    if (code == K2_OK && out->config.master_listen[0])
        snprintf(out->url, sizeof out->url, "%.200s", out->config.master_listen);
    else if (code == K2_OK)
        code = k2_net_url_for_dir(dir, out->url, err);
    k2_free(manifest);
    k2_free(config);
    k2_free(data);
    return code;
}

k2_code k2m_find(const char *dir, k2m_found *out, k2_error *err)
{
    *out = (k2m_found){0};
    k2_code code = read_papers(dir, out, err);
    if (code != K2_OK) return code;
    char *journal = k2_asprintf("%s/journal", dir);
    k2_journal_config jc = {.kind = K2_JOURNAL_LMDB, .dir = journal, .map_bytes = out->config.run_journal_mb << 20};
    k2_error open;
    code = k2_journal_open(&jc, &out->journal, &open);
    if (code == K2_BUSY) {
        out->held = true;
        const char *at = strstr(open.text, "pid ");
        out->pid = at ? strtoull(at + 4, NULL, 10) : 0;
        out->journal = NULL;
        code = K2_OK;
    } else if (code != K2_OK) {
        *err = open;
    }
    k2_free(journal);
    return code;
}
