"""vLLM's side of peers.py: vllm_side.py DIR THREADS. Commands `generate BATCH PROMPT NEW`, answers `SECONDS CPU ID ID ...`; `ready` comes first."""
import os
import sys
import time

directory, threads = sys.argv[1], sys.argv[2]
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS=threads, VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR",
                  VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_MLA_DISABLE="1")
# Its latent attention exists for the head sizes of the published models only, so it runs the expanded form.
answers = os.fdopen(os.dup(1), "w")  # what else is printed goes to stderr
os.dup2(2, 1)
import vllm  # noqa: E402

llm = vllm.LLM(directory, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, max_num_seqs=64,
               enable_prefix_caching=False, disable_log_stats=True)
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
