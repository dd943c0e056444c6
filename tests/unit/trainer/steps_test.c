/* Weights after three steps of AdamW against torch's, on Hugging Face's DeepseekV3ForCausalLM. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/support/vectors.h"
#include "trainer/optim_int.h"

#define WEIGHT_BOUND 1e-5 /* absolute; the weights are drawn with a spread of 0.25, gains lie around 1 */
#define STEPS        3

static void three_steps_end_where_torch_ends(void **state)
{
    vectors v = vectors_load(*state);
    k2_model *m = vectors_model(&v);
    vectors_batch batch = vectors_batch_take(&v);
    const k2_model_layout *l = k2_model_layout_of(m);
    float *grads = k2_alloc_array(l->floats, sizeof(float)), *given = vectors_take(&v, "", "adamw", 5);
    k2i_optim_span *spans = k2_alloc_array(l->params_count, sizeof(*spans));
    for (size_t i = 0; i < l->params_count; i++) {
        const k2_param *p = &l->params[i];
        spans[i] = (k2i_optim_span){.begin = p->offset,
                                    .end = p->offset + p->count,
                                    .trained = p->kind != K2_KIND_BIAS,
                                    .decays = p->kind != K2_KIND_NORM};
    }
    k2i_optim_config config = {
        .beta1 = (double)given[1], .beta2 = (double)given[2], .eps = (double)given[3], .weight_decay = (double)given[4]};
    k2i_optim optim;
    k2i_optim_init(&optim, 0, l->floats);
    for (int step = 0; step < STEPS; step++) {
        vectors_grads(m, &batch, grads);
        k2i_optim_apply(&optim, &config, spans, l->params_count, (double)given[0], 1, grads, k2_model_params(m));
        k2_model_params_changed(m);
    }
    double worst = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        const k2_param *p = &l->params[i];
        float *want = vectors_take(&v, p->kind == K2_KIND_BIAS ? "w:" : "a:", p->name, p->count);
        assert_non_null(want);
        for (size_t e = 0; e < p->count; e++) {
            double x = fabs((double)k2_model_params(m)[p->offset + e] - (double)want[e]);
            if (x > WEIGHT_BOUND) fail_msg("%s, element %zu: %.2e from torch's", p->name, e, x);
            worst = fmax(worst, x);
        }
        k2_free(want);
    }
    print_message("  weights: largest difference %.2e\n", worst);
    k2i_optim_fini(&optim);
    k2_free(spans);
    k2_free(given);
    k2_free(grads);
    vectors_batch_free(&batch);
    k2_model_free(m);
    vectors_free(&v);
}

int main(void)
{
    return vectors_run(three_steps_end_where_torch_ends, 12);
}
