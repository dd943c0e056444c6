"""vLLM's side of peers.py: vllm_side.py DIR THREADS WAY CACHE. Commands `generate BATCH PROMPT NEW`, answers `SECONDS CPU ID ID ...`; `ready`
comes first. WAY is one of WAYS below; what is compiled is kept in the folder CACHE."""
import os
import sys
import time

WAYS = {
    "compiled": {},  # as it comes
    "eager": {"enforce_eager": True},  # nothing compiled: its own CPU operators
    "eager, torch operators": {"enforce_eager": True, "compilation_config": {"custom_ops": ["none"]}},
}
directory, threads, way, cache = sys.argv[1:5]
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS=threads, VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR",
                  VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_MLA_DISABLE="1", VLLM_CACHE_ROOT=os.path.join(cache, "vllm"),
                  TORCHINDUCTOR_CACHE_DIR=os.path.join(cache, "inductor"))
# Its latent attention exists for the head sizes of the published models only, so it runs the expanded form.
answers = os.fdopen(os.dup(1), "w")  # what else is printed goes to stderr
os.dup2(2, 1)
import vllm  # noqa: E402

llm = vllm.LLM(directory, dtype="float32", skip_tokenizer_init=True, max_model_len=256, max_num_seqs=64, enable_prefix_caching=False,
               disable_log_stats=True, **WAYS[way])
vocab = llm.llm_engine.model_config.get_vocab_size()


def answer(text):
    answers.write(text + "\n")
    answers.flush()


answer("ready")
for line in sys.stdin:
    batch, prompt, new = map(int, line.split()[1:])
    ids = [{"prompt_token_ids": [(i * 31 + p * 7919 + p // 3) % vocab for p in range(prompt)]} for i in range(batch)]
    params = vllm.SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False)
    wall, cpu = time.perf_counter(), time.process_time()
    out = llm.generate(ids, params, use_tqdm=False)
    seconds = f"{time.perf_counter() - wall} {time.process_time() - cpu}"
    answer(" ".join([seconds, *map(str, out[0].outputs[0].token_ids)]))
