/* What belongs to a model beside its weights, and does not depend on how they are stored. */
#include "common/weights/weights.h"

static const char *const side_files[] = {"generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tiktoken.model",
                                         "qwen.tiktoken",
                                         "cl100k_base.tiktoken",
                                         "tokenizer.model",
                                         "tokenization_kimi.py",
                                         "configuration_deepseek.py",
                                         "modeling_deepseek.py",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "LICENSE"};

static k2_code side_file_copy(const char *from, const char *to, const char *name, k2_error *err)
{
    char *source = k2_asprintf("%s/%s", from, name), *path = k2_asprintf("%s/%s", to, name);
    k2_code code = k2_file_exists(source) ? k2_file_copy(source, path, err) : K2_OK;
    k2_free(source);
    k2_free(path);
    return code;
}

k2_code k2_weights_side_files_copy(const char *from, const char *to, k2_error *err)
{
    k2_code code = K2_OK;
    for (size_t i = 0; i < K2_COUNT(side_files) && code == K2_OK; i++) code = side_file_copy(from, to, side_files[i], err);
    return code;
}
