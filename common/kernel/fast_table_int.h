/* fast_table_int - the table of one fast path; included last by each fast_*.c. BF16 is the word that its bf16 functions begin with. */
#define K2I_FAST_TABLE(NAME, BF16)                  \
    {                                               \
        .name = NAME,                               \
        .gemm = fast_gemm,                          \
        .gemm_bf16 = BF16##_gemm_bf16,              \
        .bf16 = BF16##_bf16,                        \
        .rmsnorm_fwd = fast_rmsnorm_fwd,            \
        .rmsnorm_bwd = fast_rmsnorm_bwd,            \
        .rmsnorm_bwd_gain = fast_rmsnorm_bwd_gain,  \
        .rope = fast_rope,                          \
        .attn_fwd = fast_attn_fwd,                  \
        .attn_bwd = fast_attn_bwd,                  \
        .swiglu_fwd = fast_swiglu_fwd,              \
        .swiglu_bwd = fast_swiglu_bwd,              \
        .sigmoid = fast_sigmoid,                    \
        .softmax_sums = fast_softmax_sums,          \
        .softmax_bwd = fast_softmax_bwd,            \
        .exp = fast_exp,                            \
        .add = fast_add,                            \
        .axpy = fast_axpy,                          \
        .scale = fast_scale,                        \
        .dot = fast_dot,                            \
        .sumsq = fast_sumsq,                        \
        .adamw = fast_adamw,                        \
    }
