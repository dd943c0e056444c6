/* commands_int - the sub-commands behind `k2rl data`. */
#ifndef K2_DATA_COMMANDS_INT_H
#define K2_DATA_COMMANDS_INT_H

#include "common/base/base.h"

/* Sub-commands: args are what stands behind the sub-command's name. */
k2_code k2i_data_text2idx(char **args, int count, k2_error *err);
k2_code k2i_data_jsonl2idx(char **args, int count, k2_error *err);
k2_code k2i_data_show(char **args, int count, k2_error *err);
k2_code k2i_data_task(char **args, int count, k2_error *err);

#endif
