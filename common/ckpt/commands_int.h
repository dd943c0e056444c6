/* commands_int - the sub-commands of `k2rl ckpt`: each gets the words behind its name and prints what it finds on stdout. */
#ifndef K2_CKPT_COMMANDS_INT_H
#define K2_CKPT_COMMANDS_INT_H

#include "common/weights/weights.h"

k2_code k2i_ckpt_show(char **args, int count, k2_error *err);
k2_code k2i_ckpt_verify(char **args, int count, k2_error *err);
k2_code k2i_ckpt_convert(char **args, int count, k2_error *err);

/* DIR/config.json. */
k2_code k2i_ckpt_dims(const char *dir, k2_dims *out, k2_error *err);

/* A line on a terminal that grows with what is done; nothing where stderr is none. */
typedef struct k2i_ckpt_meter {
    const char *what;
    unsigned shown; /* percent */
} k2i_ckpt_meter;
void k2i_ckpt_meter_move(void *meter, uint64_t done, uint64_t total);
void k2i_ckpt_meter_end(k2i_ckpt_meter *meter);

#endif
