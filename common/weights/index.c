/* The index of a model that is kept in shards. */
#include "index_int.h"
#include "json_int.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int by_shard(const void *a, const void *b)
{
    const k2i_place *x = a, *y = b;
    const int order = strcmp(x->shard, y->shard);
    return order ? order : strcmp(x->tensor, y->tensor);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static k2_code places_parse(const char *name, k2i_index *x, k2_error *err)
{
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(x->root, "weight_map"), *item;
    if (!cJSON_IsObject(map)) return k2_error_set(err, K2_BAD_INPUT, "%s: \"weight_map\" is no object", name);
    const size_t count = (size_t)cJSON_GetArraySize(map);
    x->places = k2_alloc_array(count, sizeof *x->places);
    x->names = k2_alloc_array(count, sizeof *x->names);
    cJSON_ArrayForEach(item, map)
    {
        const char *shard = item->valuestring;
        if (!cJSON_IsString(item) || !*shard || *shard == '.' || strchr(shard, '/') || strlen(shard) > NAME_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "%.200s: weight_map of %.100s is not the name of a file in the directory",
                                name, item->string);
        x->names[x->count] = item->string;
        x->places[x->count++] = (k2i_place){.tensor = item->string, .shard = shard};
    }
    qsort(x->places, count, sizeof *x->places, by_shard);
    qsort(x->names, count, sizeof *x->names, by_text);
    for (size_t i = 1; i < count; i++)
        if (strcmp(x->names[i - 1], x->names[i]) == 0)
            return k2_error_set(err, K2_BAD_INPUT, "%.200s: weight_map names %.100s twice", name, x->names[i]);
    return K2_OK;
}

k2_code k2i_index_parse(const char *name, const char *text, size_t n, k2i_index **out, k2_error *err)
{
    k2i_index *x = k2_alloc(sizeof *x);
    k2_code code = k2i_json_parse(name, text, n, &x->root, err);
    if (code == K2_OK) code = places_parse(name, x, err);
    if (code == K2_OK)
        *out = x;
    else
        k2i_index_free(x);
    return code;
}

void k2i_index_free(k2i_index *x)
{
    if (!x) return;
    cJSON_Delete(x->root);
    k2_free(x->places);
    k2_free(x->names);
    k2_free(x);
}

bool k2i_index_holds(const k2i_index *x, const char *tensor)
{
    return bsearch(&tensor, x->names, x->count, sizeof *x->names, by_text) != NULL;
}
