/* ckpt - the command that looks at model directories, checks them and converts them. What a directory is stands in
 * common/weights, which tensors a model has in common/model; here they meet. */
#ifndef K2_COMMON_CKPT_H
#define K2_COMMON_CKPT_H

/* `k2rl ckpt show|verify|convert ...`; argv[0] is "ckpt". Returns the exit status: 0, 2 for bad input or usage, 1 otherwise. */
int k2_ckpt_main(int argc, char **argv);

#endif
