/* warmup_trainer - run the pretraining of a configuration in one process, and watch what it teaches.
 *
 *     warmup_trainer FILE [path=value ...]     e.g. warmup_trainer configs/quickstart.json seed=3 pretrain.steps=500
 *
 * CSV: step, loss, tokens a second, seconds, then shares of answers sampled at temperature 1 to held-out prompts: valid (an
 * output of any of the four skills), right (of the one asked for), and each skill. This is how the quickstart's model and
 * warm-up were chosen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/trainer/sample.h"
#include "trainer/work_int.h"

enum { SLICE = 50, PROMPTS = 256 };

static void fail(const k2_error *err)
{
    fprintf(stderr, "warmup_trainer: %s\n", err->text);
    exit(k2_code_exit(err->code));
}

static void task_make(k2_config *c, const char *dir, k2_prompts **heldout)
{
    k2_task_sizes sizes = K2_TASK_SIZES_DEFAULT;
    k2_error err;
    sizes.corpus = (uint32_t)c->data_task_corpus;
    sizes.prompts = (uint32_t)c->data_task_prompts;
    sizes.heldout = (uint32_t)c->data_task_heldout;
    if (k2_task_quickstart_write(dir, c->seed, &sizes, &err) != K2_OK) fail(&err);
    char *path = k2_asprintf("%s/" K2_TASK_HELDOUT_FILE, dir);
    if (k2_prompts_load(path, NULL, heldout, &err) != K2_OK) fail(&err);
    k2_free(path);
    snprintf(c->data_corpus, sizeof(c->data_corpus), "%s/" K2_TASK_CORPUS_PREFIX, dir);
    snprintf(c->run_dir, sizeof(c->run_dir), "%s", dir);
}

static void line(const k2i_result *r, uint64_t step, double seconds, const sample_score *s)
{
    double n = s->prompts;
    printf("%llu,%.4f,%.0f,%.1f,%.3f,%.3f", (unsigned long long)step, k2i_metrics_get(&r->metrics, "loss"),
           k2i_metrics_get(&r->metrics, "tokens_per_s"), seconds, s->valid / n, s->right / n);
    for (uint32_t i = 0; i < SAMPLE_SKILLS; i++) printf(",%.3f", s->skill[i] / n);
    printf(",%.2f,%.2f\n", k2i_metrics_get(&r->metrics, "grad_norm"), k2i_metrics_get(&r->metrics, "load_max_vio"));
    fflush(stdout);
}

static void run(const k2_config *config, const k2_prompts *heldout)
{
    k2i_work w;
    k2i_result *r = k2_alloc(sizeof(*r));
    const char *locator = "";
    double seconds = 0;
    if (k2i_work_open(&w, config, 0, NULL, &r->error) != K2_OK) fail(&r->error);
    k2i_work_join(&w, r);
    if (r->error.code == K2_OK) k2i_work_init(&w, &locator, 1, "fresh", 0, r);
    if (r->error.code != K2_OK) fail(&r->error);
    fprintf(stderr, "params %.0f active %.0f memory %.0f MiB\n", k2i_metrics_get(&r->metrics, "params"),
            k2i_metrics_get(&r->metrics, "active_params"), k2i_metrics_get(&r->metrics, "memory_bytes") / 1048576);
    printf("step,loss,tokens_per_s,seconds,valid,right,copy,back,twin,fold,grad_norm,load_max_vio\n");
    for (uint64_t step = 0; step < config->pretrain_steps; step += SLICE) {
        uint64_t to = K2_MIN(step + SLICE, config->pretrain_steps);
        k2i_work_pretrain(&w, step, to, r);
        if (r->error.code != K2_OK) fail(&r->error);
        seconds += k2i_metrics_get(&r->metrics, "seconds");
        sample_score s = sample_answers(k2i_learner_model(w.learner), heldout, PROMPTS, to, false);
        line(r, to, seconds, &s);
    }
    k2i_work_close(&w);
    k2_free(r);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/k2rl-warmup-XXXXXX";
    k2_config config;
    k2_error err;
    k2_prompts *heldout;
    if (argc < 2) {
        fprintf(stderr, "usage: warmup_trainer FILE [path=value ...]\n");
        return 2;
    }
    k2_config_defaults(&config);
    if (k2_config_load(&config, argv[1], &err) != K2_OK) fail(&err);
    for (int i = 2; i < argc; i++)
        if (k2_config_set(&config, argv[i], &err) != K2_OK) fail(&err);
    K2_ASSERT(mkdtemp(dir) != NULL);
    task_make(&config, dir, &heldout);
    run(&config, heldout);
    k2_prompts_free(heldout);
    (void)k2_dir_remove(dir, NULL);
    return 0;
}
