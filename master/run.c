/* run: the input of a run, checked before anything is made, and its directory. */
#include "master/io_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/budget/budget.h"
#include "common/model/model.h"
#include "common/weights/weights.h"

static bool is_pretrain(const k2m_run *r)
{
    return strcmp(r->config.mode, "pretrain") == 0;
}

/* ---- input
 * -------------------------------------------------------------------------------------------------------------------- */

/* Names, types and shapes of a model directory's tensors, whether in one file or in shards. */
static k2_code check_weights(const k2m_run *r, const char *dir, k2_error *err)
{
    k2_model_layout *l = k2_model_layout_new(&r->dims);
    k2_weights_slot *slots = k2_alloc_array(l->params_count, sizeof *slots);
    for (size_t i = 0; i < l->params_count; i++)
        slots[i] = (k2_weights_slot){.name = l->params[i].name, .shape = l->params[i].shape};
    k2_code code = k2_weights_dir_check(dir, slots, l->params_count, err);
    k2_free(slots);
    k2_model_layout_free(l);
    return code;
}

static k2_code check_model(k2m_run *r, k2_error *err)
{
    const k2_config *c = &r->config;
    char *path = k2_inputs_model_path(c);
    k2_code code = k2_weights_dims_load(path, &r->dims, err);
    k2_free(path);
    if (code == K2_OK && c->model_dir[0]) code = check_weights(r, c->model_dir, err);
    if (code != K2_OK) {
        k2_error_prefix(err, c->model_dir[0] ? "model.dir" : "model.config");
        return code;
    }
    if (k2_budget_has_reference(c) && c->trainer_kl_reference[0] &&
        (code = check_weights(r, c->trainer_kl_reference, err)) != K2_OK) {
        k2_error_prefix(err, "trainer.kl.reference");
        return code;
    }
    const k2_tokenizer_spec spec = {
        .kind = c->tokenizer_kind, .path = k2_config_tokenizer_path(c, c->model_dir), .pattern = c->tokenizer_pattern};
    code = k2_inputs_read(c, &r->inputs, err);
    if (code == K2_OK) code = k2_tokenizer_load(&spec, &r->tokenizer, err);
    if (code == K2_OK && k2_tokenizer_vocab(r->tokenizer) > r->dims.vocab_size)
        code = k2_error_set(err, K2_BAD_INPUT, "tokenizer.kind: \"%s\" has %u ids, the model's vocab_size is %u",
                            c->tokenizer_kind, k2_tokenizer_vocab(r->tokenizer), r->dims.vocab_size);
    return code;
}

static k2_code tokenize(const k2m_run *r, const char *path, k2m_prompt_set *s, uint64_t answer_tokens, k2_error *err)
{
    s->ids = k2_alloc_array(s->count, sizeof *s->ids);
    s->lengths = k2_alloc_array(s->count, sizeof *s->lengths);
    k2_tokens t;
    k2_tokens_init(&t, 1u << 22);
    k2_code code = K2_OK;
    for (uint32_t i = 0; i < s->count && code == K2_OK; i++) {
        const k2_prompt *p = k2_prompts_at(s->list, i);
        k2_tokens_clear(&t);
        code = k2m_prompt_render(r->tokenizer, p, &t, err);
        if (code != K2_OK) k2_error_prefix(err, "%s:%u", path, p->line);
        if (code == K2_OK && t.count + answer_tokens > r->dims.max_position_embeddings)
            code = k2_error_set(err, K2_BAD_INPUT, "%s:%u: %zu tokens of prompt and %llu of answer, the model has %u positions",
                                path, p->line, t.count, (unsigned long long)answer_tokens, r->dims.max_position_embeddings);
        if (code != K2_OK) break;
        s->ids[i] = k2_alloc_array(t.count, sizeof **s->ids);
        memcpy(s->ids[i], t.ids, t.count * sizeof *t.ids);
        s->lengths[i] = (uint32_t)t.count;
        s->length_max = K2_MAX(s->length_max, s->lengths[i]);
    }
    k2_tokens_fini(&t);
    return code;
}

static k2_code load_prompts(const k2m_run *r, const char *path, k2m_prompt_set *s, uint64_t answer_tokens, k2_error *err)
{
    k2_prompts_limits limits = {.answer_optional = strcmp(r->config.reward_kind, "command") == 0};
    k2_code code = k2_prompts_load(path, &limits, &s->list, err);
    if (code != K2_OK) return code;
    s->count = (uint32_t)k2_prompts_count(s->list);
    s->fingerprint = k2_prompts_fingerprint(s->list);
    return tokenize(r, path, s, answer_tokens, err);
}

typedef struct placed {
    double difficulty;
    uint32_t prompt;
} placed;

static int by_difficulty(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->difficulty != y->difficulty) return x->difficulty < y->difficulty ? -1 : 1;
    return x->prompt < y->prompt ? -1 : 1;
}

static k2_code curriculum_make(const char *path, k2m_prompt_set *s, k2_error *err)
{
    placed *all = k2_alloc_array(s->count, sizeof *all);
    k2_code code = K2_OK;
    s->difficulty = k2_alloc_array(s->count, sizeof *s->difficulty);
    s->easy_first = k2_alloc_array(s->count, sizeof *s->easy_first);
    for (uint32_t i = 0; i < s->count && code == K2_OK; i++) {
        const k2_prompt *p = k2_prompts_at(s->list, i);
        if (isnan(p->difficulty))
            code = k2_error_set(err, K2_BAD_INPUT, "%s:%u: \"difficulty\": found no number, expected one for data.curriculum",
                                path, p->line);
        s->difficulty[i] = p->difficulty;
        all[i] = (placed){.difficulty = p->difficulty, .prompt = i};
    }
    if (code == K2_OK) qsort(all, s->count, sizeof *all, by_difficulty);
    for (uint32_t i = 0; i < s->count; i++) s->easy_first[i] = all[i].prompt;
    k2_free(all);
    return code;
}

static k2_code load_corpus(k2m_run *r, k2_error *err)
{
    k2_idx *x = NULL;
    k2_code code = k2_idx_open(r->config.data_corpus, &x, err);
    if (code == K2_OK) code = k2_idx_check_vocab(x, r->dims.vocab_size, err);
    if (code == K2_OK) {
        r->corpus = k2_idx_fingerprint(x);
        r->corpus_tokens = k2_idx_tokens(x);
    }
    k2_idx_close(x);
    return code;
}

/* Prompts, held-out prompts and corpus: those that exist, or all of them once they have been generated. */
static k2_code load_data(k2m_run *r, bool all, k2_error *err)
{
    const k2_config *c = &r->config;
    k2_code code = K2_OK;
    if (!is_pretrain(r) && !r->train.list && (all || c->data_prompts[0]))
        code = load_prompts(r, c->data_prompts, &r->train, c->rollout_max_tokens, err);
    if (code == K2_OK && c->data_curriculum && r->train.list && !r->train.easy_first)
        code = curriculum_make(c->data_prompts, &r->train, err);
    if (code == K2_OK && !is_pretrain(r) && !r->heldout.list && (all || c->data_heldout[0]))
        code = load_prompts(r, c->data_heldout, &r->heldout, c->eval_max_tokens, err);
    if (code == K2_OK && c->pretrain_steps && r->corpus_tokens == 0 && (all || c->data_corpus[0])) code = load_corpus(r, err);
    return code;
}

/* An engine must have room for the longest answer, or it would refuse that request for ever. Before the prompts are made their
 * lengths are not known: one token each is the least. */
static k2_code check_cache(const k2m_run *r, k2_error *err)
{
    const k2_config *c = &r->config;
    uint64_t answer = c->rollout_max_tokens + K2_MAX(r->train.length_max, 1);
    if (c->eval_prompts > 0) answer = K2_MAX(answer, c->eval_max_tokens + K2_MAX(r->heldout.length_max, 1));
    uint64_t room = c->rollout_cache_tokens / c->rollout_page_tokens * c->rollout_page_tokens;
    if (is_pretrain(r) || answer <= room) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT,
                        "rollout.cache_tokens: room for %llu tokens in whole pages, expected at least the %llu of the longest "
                        "prompt and answer",
                        (unsigned long long)room, (unsigned long long)answer);
}

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* The reward's program, looked for as execvp does: it would fail for every answer, and late. */
static k2_code check_reward(const k2m_run *r, k2_error *err)
{
    const k2_config *c = &r->config;
    if (is_pretrain(r) || c->reward_command.count == 0) return K2_OK;
    const char *name = c->reward_command.item[0], *path = getenv("PATH");
    bool found = strchr(name, '/') && is_program(name);
    for (const char *p = path ? path : ""; *p && !found && !strchr(name, '/');) {
        size_t n = strcspn(p, ":");
        char *file = k2_asprintf("%.*s/%s", n ? (int)n : 1, n ? p : ".", name);
        found = is_program(file);
        k2_free(file);
        p += n + (p[n] == ':');
    }
    if (found) return K2_OK;
    return k2_error_set(err, K2_NOT_FOUND, "reward.command: %.200s is no program that can be run", name);
}

/* A port that is taken is better found now than by a process that then fails to start. */
static k2_code check_port(const char *key, const char *listen_at, k2_error *err)
{
    char host[K2_HTTP_HOST_MAX], service[8];
    uint16_t port;
    k2_code code = k2_hostport_parse(listen_at, host, &port, err);
    if (code != K2_OK) return k2_error_prefix(err, "%s", key);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &list) != 0 || !list)
        return k2_error_set(err, K2_BAD_INPUT, "%s: \"%s\" is no address of this machine", key, host);
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd >= 0 && bind(fd, list->ai_addr, list->ai_addrlen) != 0) {
        if (errno == EADDRINUSE)
            code = k2_error_set(err, K2_BUSY, "%s: %s is in use by another process", key, listen_at);
        else
            code = k2_error_set(err, K2_BAD_INPUT, "%s: cannot listen on %s: %s", key, listen_at, strerror(errno));
    }
    if (fd >= 0) close(fd);
    freeaddrinfo(list);
    return code;
}

static k2_code check_control(const char *url, k2_error *err)
{
    static const char scheme[] = "tcp://";
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return k2_error_set(err, K2_BAD_INPUT, "master.listen: found \"%.100s\", expected tcp://HOST:PORT or nothing", url);
    return check_port("master.listen", url + sizeof scheme - 1, err);
}

/* Each is free by itself; both cannot have the same one. Port 0 is any. */
static k2_code check_ports_differ(const k2_config *c, k2_error *err)
{
    const char *control = c->master_listen + strcspn(c->master_listen, "/"), *clients = c->proxy_listen;
    const char *a = strrchr(control, ':'), *b = strrchr(clients, ':');
    if (!a || !b || strcmp(a, b) != 0 || strcmp(a, ":0") == 0) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "proxy.listen: found the port of master.listen (%.20s), expected another one",
                        b + 1);
}

/* Manifest of an earlier start in this directory, NULL when there is none. k2_free it. */
static char *read_manifest(const k2m_run *r)
{
    char *path = k2_asprintf("%s/manifest.json", r->config.run_dir), *text = NULL;
    size_t n;
    if (k2_file_read(path, 1 << 20, &text, &n, NULL) != K2_OK) text = NULL;
    k2_free(path);
    return text;
}

static bool manifest_says(const char *manifest, const char *key, k2_digest digest)
{
    char hex[K2_DIGEST_HEX], line[96];
    k2_digest_hex(digest, hex);
    snprintf(line, sizeof line, "\"%s\": \"%s\"", key, hex);
    return strstr(manifest, line) != NULL;
}

static k2_code check_existing(k2m_run *r, k2_error *err)
{
    char *manifest = read_manifest(r);
    k2_code code = K2_OK;
    r->existed = manifest != NULL;
    if (manifest && !manifest_says(manifest, "identity", r->identity))
        code =
            k2_error_set(err, K2_BAD_INPUT,
                         "%s: holds a run of another configuration (see its config.json); choose another run.dir or remove it",
                         r->config.run_dir);
    else if (manifest && !manifest_says(manifest, "tokenizer_fingerprint", r->inputs.tokenizer))
        code = k2_error_set(err, K2_BAD_INPUT,
                            "%s: the tokenizer is not what %s was begun with (tokenizer_fingerprint in manifest.json)",
                            k2_config_tokenizer_path(&r->config, r->config.model_dir), r->config.run_dir);
    else if (manifest && !manifest_says(manifest, "model_fingerprint", r->inputs.model))
        code = k2_error_set(err, K2_BAD_INPUT,
                            "%s: the model's sizes are not what %s was begun with (model_fingerprint in manifest.json)",
                            r->config.model_dir[0] ? r->config.model_dir : r->config.model_config, r->config.run_dir);
    char *journal = k2_asprintf("%s/journal/data.mdb", r->config.run_dir); /* it is there before the manifest is */
    if (code == K2_OK && manifest && !k2_file_exists(journal))
        code = k2_error_set(err, K2_NOT_FOUND,
                            "%s: is missing, the run cannot go on without it; choose another run.dir or remove %s", journal,
                            r->config.run_dir);
    k2_free(journal);
    if (!manifest && r->resume)
        code = k2_error_set(err, K2_NOT_FOUND, "%s: no run to resume; expected a manifest.json in it", r->config.run_dir);
    k2_free(manifest);
    return code;
}

/* Where the task's files are, unless the configuration names others. */
static void data_paths(k2m_run *r)
{
    k2_config *c = &r->config;
    if (!c->data_task[0]) return;
    bool prompts = strcmp(c->data_task, "quickstart") == 0;
    if (prompts && !c->data_prompts[0])
        snprintf(c->data_prompts, sizeof c->data_prompts, "%.400s/data/%s", c->run_dir, K2_TASK_PROMPTS_FILE);
    if (prompts && !c->data_heldout[0])
        snprintf(c->data_heldout, sizeof c->data_heldout, "%.400s/data/%s", c->run_dir, K2_TASK_HELDOUT_FILE);
    if (!c->data_corpus[0])
        snprintf(c->data_corpus, sizeof c->data_corpus, "%.400s/data/%s", c->run_dir, K2_TASK_CORPUS_PREFIX);
}

k2_code k2m_run_check(k2m_run *r, k2_error *err)
{
    k2_config *c = &r->config;
    r->identity = k2_config_identity(c);
    k2_code code = k2_config_check(c, err);
    if (code == K2_OK) code = check_model(r, err);
    if (code == K2_OK) code = load_data(r, false, err);
    if (code == K2_OK) code = check_cache(r, err);
    if (code == K2_OK) code = check_reward(r, err);
    if (code == K2_OK && strcmp(c->data_task, "licences") == 0 && c->pretrain_steps && !c->data_corpus[0])
        code = k2_task_licences_check(NULL, err);
    if (code == K2_OK && !is_pretrain(r)) code = check_port("proxy.listen", c->proxy_listen, err);
    if (code == K2_OK && c->master_listen[0]) code = check_control(c->master_listen, err);
    if (code == K2_OK && c->master_listen[0] && !is_pretrain(r)) code = check_ports_differ(c, err);
    if (code == K2_OK) code = k2m_plan_check(r, err);
    if (code == K2_OK) code = check_existing(r, err);
    const char *base = strrchr(c->run_dir, '/');
    snprintf(r->id, sizeof r->id, "%.40s-%08x", base && base[1] ? base + 1 : c->run_dir, (unsigned)(r->identity.hi >> 32));
    return code;
}

/* ---- directory
 * -------------------------------------------------------------------------------------------------------------------- */

/* Before data_paths: what the configuration names is not made. */
static k2_code generate(const k2m_run *r, k2_error *err)
{
    const k2_config *c = &r->config;
    k2_task_sizes sizes = K2_TASK_SIZES_DEFAULT;
    sizes.corpus = (uint32_t)c->data_task_corpus;
    sizes.prompts = (uint32_t)c->data_task_prompts;
    sizes.heldout = (uint32_t)c->data_task_heldout;
    char *dir = k2_asprintf("%s/data", c->run_dir);
    k2_code code = K2_OK;
    bool corpus = c->pretrain_steps && !c->data_corpus[0],
         prompts = !is_pretrain(r) && !(c->data_prompts[0] && c->data_heldout[0]);
    if (strcmp(c->data_task, "quickstart") == 0 && (corpus || prompts))
        code = k2_task_quickstart_ensure(dir, c->seed, &sizes, err);
    if (strcmp(c->data_task, "licences") == 0 && corpus) code = k2_task_licences_ensure(dir, NULL, err);
    k2_free(dir);
    return code;
}

static void put_string(k2_buf *b, const char *key, const char *value)
{
    k2_buf_printf(b, "\"%s\": ", key);
    k2_buf_json_string(b, value, strlen(value));
}

static void put_digest(k2_buf *b, const char *key, k2_digest d)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(d, hex);
    k2_buf_printf(b, "\"%s\": \"%s\"", key, hex);
}

static void put_data(k2_buf *b, const k2m_run *r)
{
    k2_buf_puts(b, "  \"data\": {\n    ");
    put_string(b, "prompts", r->config.data_prompts);
    k2_buf_printf(b, ", \"prompts_count\": %u, ", r->train.count);
    put_digest(b, "prompts_fingerprint", r->train.fingerprint);
    k2_buf_puts(b, ",\n    ");
    put_string(b, "heldout", r->config.data_heldout);
    k2_buf_printf(b, ", \"heldout_count\": %u, ", r->heldout.count);
    put_digest(b, "heldout_fingerprint", r->heldout.fingerprint);
    k2_buf_puts(b, ",\n    ");
    put_string(b, "corpus", r->config.data_corpus);
    k2_buf_printf(b, ", \"corpus_tokens\": %llu, ", (unsigned long long)r->corpus_tokens);
    put_digest(b, "corpus_fingerprint", r->corpus);
    k2_buf_puts(b, "\n  },\n");
}

static void put_argv(k2_buf *b, const k2m_run *r)
{
    k2_buf_puts(b, "  \"argv\": [\"k2rl\"");
    for (int i = 0; i < r->argc; i++) {
        k2_buf_puts(b, ", ");
        k2_buf_json_string(b, r->argv[i], strlen(r->argv[i]));
    }
    k2_buf_puts(b, "],\n");
}

/* Which build ran, told by its own bytes; a build need not come from a repository. Zeros where it cannot be read. */
static k2_digest program_digest(void)
{
    char *bytes = NULL;
    size_t n = 0;
    if (k2_file_read("/proc/self/exe", 1u << 30, &bytes, &n, NULL) != K2_OK) return (k2_digest){0, 0};
    k2_digest d = k2_digest_of(bytes, n);
    k2_free(bytes);
    return d;
}

/* Everything needed to repeat the run: configuration, data, seed, program, host. */
static void write_manifest(const k2m_run *r, k2_buf *b)
{
    char host[256] = "", cwd[4096] = "";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    if (!getcwd(cwd, sizeof cwd)) cwd[0] = 0;
    char *config = k2_config_json(&r->config);
    k2_buf model;
    k2_buf_init(&model, K2_WEIGHTS_CONFIG_BYTES_MAX);
    k2_weights_dims_encode(&r->dims, &model);
    k2_buf_printf(b, "{\n  \"format\": 1,\n  ");
    put_string(b, "run_id", r->id);
    k2_buf_printf(b, ",\n  \"k2rl\": \"%s\",\n  ", K2_VERSION);
    put_digest(b, "program_digest", program_digest());
    k2_buf_puts(b, ",\n  ");
    put_string(b, "compiler", __VERSION__);
    k2_buf_printf(b, ",\n  \"created_us\": %llu,\n  ", (unsigned long long)k2_wall_us());
    put_string(b, "host", host);
    k2_buf_puts(b, ",\n  ");
    put_string(b, "cwd", cwd);
    k2_buf_puts(b, ",\n");
    put_argv(b, r);
    k2_buf_puts(b, "  ");
    put_digest(b, "identity", r->identity);
    k2_buf_printf(b, ",\n  \"seed\": %llu,\n", (unsigned long long)r->config.seed);
    put_data(b, r);
    k2_buf_puts(b, "  ");
    put_digest(b, "tokenizer_fingerprint", r->inputs.tokenizer);
    k2_buf_puts(b, ",\n  ");
    put_digest(b, "model_fingerprint", r->inputs.model);
    k2_buf_printf(b, ",\n  \"model\": %.*s,\n", (int)model.len, model.data);
    k2_buf_printf(b, "  \"config\": %s\n}\n", config);
    k2_buf_fini(&model);
    k2_free(config);
}

static k2_code compare_data(const k2m_run *r, k2_error *err)
{
    char *manifest = read_manifest(r);
    const struct {
        const char *key, *path;
        k2_digest digest;
    } files[] = {{"prompts_fingerprint", r->config.data_prompts, r->train.fingerprint},
                 {"heldout_fingerprint", r->config.data_heldout, r->heldout.fingerprint},
                 {"corpus_fingerprint", r->config.data_corpus, r->corpus}};
    k2_code code = K2_OK;
    for (size_t i = 0; manifest && i < K2_COUNT(files) && code == K2_OK; i++)
        if (!manifest_says(manifest, files[i].key, files[i].digest))
            code = k2_error_set(err, K2_BAD_INPUT, "%s: its content is not what %s was begun with (%s in manifest.json)",
                                files[i].path, r->config.run_dir, files[i].key);
    k2_free(manifest);
    return code;
}

static k2_code write_file(const k2m_run *r, const char *name, const char *text, size_t n, k2_error *err)
{
    char *path = k2_asprintf("%s/%s", r->config.run_dir, name);
    k2_code code = k2_file_write_atomic(path, text, n, err);
    k2_free(path);
    return code;
}

static k2_code make_dirs(const k2m_run *r, k2_error *err)
{
    static const char *const names[] = {"logs", "checkpoints", "tensorboard"};
    k2_code code = K2_OK;
    for (size_t i = 0; i < K2_COUNT(names) && code == K2_OK; i++) {
        char *path = k2_asprintf("%s/%s", r->config.run_dir, names[i]);
        code = k2_dir_make(path, err);
        k2_free(path);
    }
    return code;
}

/* The manifest is written last: a directory without one was never begun. */
static k2_code write_papers(const k2m_run *r, k2_error *err)
{
    char *config = k2_config_json(&r->config);
    k2_code code = write_file(r, "config.json", config, strlen(config), err);
    k2_free(config);
    if (code != K2_OK || r->existed) return code;
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    write_manifest(r, &b);
    code = write_file(r, "manifest.json", b.data, b.len, err);
    k2_buf_fini(&b);
    return code;
}

/* A journal that was emptied would let the run begin anew over checkpoints that it knows nothing about. Looked at before it is
 * opened, which makes a sound file of an empty one. That it has no records is no sign: a run may be killed after its first
 * checkpoint and before the record of it. */
static k2_code check_journal(const k2m_run *r, const char *dir, k2_error *err)
{
    char *data = k2_asprintf("%s/data.mdb", dir), *latest = k2_asprintf("%s/checkpoints/latest", r->config.run_dir);
    struct stat st;
    bool lost = stat(data, &st) == 0 && st.st_size == 0 && k2_file_exists(latest);
    k2_free(latest);
    k2_free(data);
    if (!lost) return K2_OK;
    return k2_error_set(err, K2_CORRUPT,
                        "%s: its journal is empty although it has checkpoints; put journal/data.mdb back, or choose "
                        "another run.dir",
                        r->config.run_dir);
}

k2_code k2m_run_prepare(k2m_run *r, k2_journal **journal, k2_error *err)
{
    char *dir = k2_asprintf("%s/journal", r->config.run_dir);
    k2_journal_config jc = {.kind = K2_JOURNAL_LMDB, .dir = dir, .map_bytes = r->config.run_journal_mb << 20};
    k2_code code = check_journal(r, dir, err);
    if (code == K2_OK) code = k2_journal_open(&jc, journal, err);
    k2_free(dir);
    if (code != K2_OK) return code;
    code = make_dirs(r, err);
    k2m_remains_clear(r->config.run_dir);
    if (code == K2_OK) code = generate(r, err);
    data_paths(r);
    if (code == K2_OK) code = load_data(r, true, err);
    if (code == K2_OK) code = check_cache(r, err);
    if (code == K2_OK && r->existed) code = compare_data(r, err);
    if (code == K2_OK) code = k2m_plan_check(r, err);
    if (code == K2_OK) code = write_papers(r, err);
    if (code != K2_OK) {
        k2_journal_close(*journal);
        *journal = NULL;
    }
    return code;
}

static void prompts_fini(k2m_prompt_set *s)
{
    for (uint32_t i = 0; s->ids && i < s->count; i++) k2_free(s->ids[i]);
    k2_free(s->ids);
    k2_free(s->difficulty);
    k2_free(s->easy_first);
    k2_free(s->lengths);
    k2_prompts_free(s->list);
}

void k2m_run_fini(k2m_run *r)
{
    prompts_fini(&r->train);
    prompts_fini(&r->heldout);
    k2_tokenizer_close(r->tokenizer);
}
