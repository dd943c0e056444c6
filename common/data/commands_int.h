/* commands_int - the sub-commands behind `k2rl data`. */
#ifndef K2_DATA_COMMANDS_INT_H
#define K2_DATA_COMMANDS_INT_H

#include "common/base/base.h"
#include "common/token/token.h"

/* Sub-commands: args are what stands behind the sub-command's name. */
k2_code k2i_data_text2idx(char **args, int count, k2_error *err);
k2_code k2i_data_jsonl2idx(char **args, int count, k2_error *err);
k2_code k2i_data_show(char **args, int count, k2_error *err);
k2_code k2i_data_tokens(char **args, int count, k2_error *err);
k2_code k2i_data_task(char **args, int count, k2_error *err);

/* What --tokenizer and --pattern name; without a path the byte tokenizer. */
k2_code k2i_tokenizer_of(const char *path, const char *pattern, k2_tokenizer **out, k2_error *err);
/* Print a token where it is characters that can be seen, or a space; false: nothing was printed. */
bool k2i_token_print(const k2_tokenizer *t, int32_t id);

#endif
