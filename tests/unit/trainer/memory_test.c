/* What a trainer takes is what common/budget says, within a tenth: each case is a process of its own that trains, publishes
 * twice and saves, and is asked for its peak. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include "common/data/data.h"
#include "tests/unit/trainer/fixture.h"
#include "trainer/work_int.h"

enum { SEQUENCE = 64, DOCUMENTS = 32, VOCAB = 2000 };

typedef struct memory_case {
    const char *recompute, *optimizer;
    uint32_t threads; /* one lane each */
    const char *compute;
} memory_case;

/* Wide enough that what is counted outweighs what is not. */
static k2_dims dims_make(void)
{
    k2_dims d = fixture_dims();
    d.vocab_size = VOCAB;
    d.hidden_size = 192;
    d.num_hidden_layers = 4;
    d.num_attention_heads = 4;
    d.kv_lora_rank = 64;
    d.intermediate_size = 512;
    d.moe_intermediate_size = 192;
    d.max_position_embeddings = 256;
    return d;
}

/* Documents of one window each, so that every micro-batch is full. */
static void corpus_write(const char *prefix)
{
    k2_idx_builder *b;
    int32_t tokens[SEQUENCE + 1];
    K2_ASSERT(k2_idx_builder_begin(prefix, K2_IDX_UINT16, &b, NULL) == K2_OK);
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int t = 0; t <= SEQUENCE; t++) tokens[t] = (d * 31 + t * 7) % VOCAB;
        K2_ASSERT(k2_idx_builder_add(b, tokens, SEQUENCE + 1, NULL) == K2_OK);
        k2_idx_builder_document_end(b);
    }
    K2_ASSERT(k2_idx_builder_commit(b, NULL) == K2_OK);
}

static k2_config config_make(const memory_case *c, const char *dir)
{
    k2_config config = fixture_config();
    snprintf(config.mode, sizeof(config.mode), "pretrain");
    snprintf(config.model_config, sizeof(config.model_config), "%s/config.json", dir);
    snprintf(config.data_corpus, sizeof(config.data_corpus), "%s/corpus", dir);
    snprintf(config.trainer_recompute, sizeof(config.trainer_recompute), "%s", c->recompute);
    snprintf(config.trainer_optimizer, sizeof(config.trainer_optimizer), "%s", c->optimizer);
    snprintf(config.model_compute, sizeof(config.model_compute), "%s", c->compute);
    config.trainer_threads = config.trainer_grad_lanes = c->threads;
    config.trainer_micro_tokens = 8 * SEQUENCE;
    config.pretrain_batch_sequences = 8 * c->threads;
    config.pretrain_sequence_tokens = SEQUENCE;
    return config;
}

static uint64_t peak_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    K2_ASSERT(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1) break;
    fclose(f);
    return kib << 10;
}

/* The child's life; what it took comes back through the pipe. */
static void live(const k2_config *config, const char *dir, int out)
{
    uint64_t before = peak_bytes(), took;
    k2i_work work;
    k2i_result *r = k2_alloc(sizeof(*r));
    char *save = k2_asprintf("%s/saved", dir), held[K2_XFER_LOCATOR_MAX];
    const char *locators[1] = {held};
    K2_ASSERT(k2i_work_open(&work, config, 0, NULL, NULL) == K2_OK);
    k2i_work_join(&work, r);
    K2_ASSERT(r->error.code == K2_OK);
    memcpy(held, r->locator, sizeof(held));
    k2i_work_init(&work, locators, 1, "fresh", 0, r);
    K2_ASSERT(r->error.code == K2_OK);
    k2i_work_pretrain(&work, 0, 2, r);
    K2_ASSERT(r->error.code == K2_OK);
    for (int i = 0; i < 2; i++) {
        k2i_work_publish(&work, 0, r);
        K2_ASSERT(r->error.code == K2_OK);
    }
    k2i_work_save(&work, save, 0, r);
    K2_ASSERT(r->error.code == K2_OK);
    took = peak_bytes() - before;
    K2_ASSERT(write(out, &took, sizeof(took)) == sizeof(took));
    _exit(0);
}

static void test_peak(void **state)
{
    const memory_case *c = *state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)c;
    skip(); /* a sanitizer's own memory would be measured */
#endif
    char *dir = fixture_dir();
    k2_config config = config_make(c, dir);
    k2_dims dims = dims_make();
    int ends[2], status;
    uint64_t took = 0;
    assert_int_equal(k2_weights_dims_write(&dims, config.model_config, NULL), K2_OK);
    corpus_write(config.data_corpus);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) live(&config, dir, ends[1]);
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(read(ends[0], &took, sizeof(took)) == sizeof(took));
    k2_budget b = k2_budget_trainer(&config, &dims, 1);
    print_message("%s, %s, %u lanes, %s: predicted %.1f MiB, peak %.1f MiB, %+.1f %%\n", c->recompute, c->optimizer, c->threads,
                  c->compute, (double)b.total / (1 << 20), (double)took / (1 << 20),
                  100 * ((double)b.total / (double)took - 1));
    assert_true((double)b.total <= 1.1 * (double)took && (double)b.total >= 0.9 * (double)took);
    close(ends[0]);
    close(ends[1]);
    fixture_dir_end(dir);
}

/* Fewer ranks' shards are larger; more tokens, lanes and updates take more; recompute less. */
static void test_directions(void **state)
{
    (void)state;
    memory_case plain = {"none", "adamw", 1, "f32"}, full = {"full", "adamw", 1, "f32"}, muon = {"none", "muon", 1, "f32"},
                two = {"none", "adamw", 2, "f32"};
    k2_dims d = dims_make();
    k2_config c = config_make(&plain, "x"), f = config_make(&full, "x"), m = config_make(&muon, "x"),
              t = config_make(&two, "x");
    uint64_t base = k2_budget_trainer(&c, &d, 1).total;
    assert_true(k2_budget_trainer(&f, &d, 1).total < base && k2_budget_trainer(&m, &d, 1).total > base);
    assert_true(k2_budget_trainer(&t, &d, 2).total < k2_budget_trainer(&t, &d, 1).total);
    c.trainer_micro_tokens *= 4;
    assert_true(k2_budget_trainer(&c, &d, 1).total > base);
    c = config_make(&plain, "x");
    c.trainer_epochs = 2;
    assert_true(k2_budget_trainer(&c, &d, 1).undo > 0);
}

int main(void)
{
    static memory_case cases[] = {{"none", "adamw", 1, "f32"}, {"none", "adamw", 2, "f32"},     {"full", "adamw", 1, "f32"},
                                  {"full", "adamw", 2, "f32"}, {"selective", "muon", 2, "f32"}, {"full", "adamw", 2, "bf16"}};
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_peak, &cases[0]),
                                       cmocka_unit_test_prestate(test_peak, &cases[1]),
                                       cmocka_unit_test_prestate(test_peak, &cases[2]),
                                       cmocka_unit_test_prestate(test_peak, &cases[3]),
                                       cmocka_unit_test_prestate(test_peak, &cases[4]),
                                       cmocka_unit_test_prestate(test_peak, &cases[5]),
                                       cmocka_unit_test(test_directions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
