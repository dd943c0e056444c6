// llama.cpp through node-llama-cpp: llama.mjs MODULE_DIR GGUF THREADS. One command a line on stdin, `generate PROMPT_IDS NEW` with ids
// joined by commas; one line of answer: SECONDS CPU ID ID ... An answer `ready` comes first.
import path from "node:path";
import readline from "node:readline";
import {pathToFileURL} from "node:url";

const [dir, gguf, threads] = process.argv.slice(2);
const {getLlama} = await import(pathToFileURL(path.join(dir, "node-llama-cpp", "dist", "index.js")).href);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath: gguf, useMmap: false});
const context = await model.createContext({contextSize: 1024, threads: Number(threads), batchSize: 512, flashAttention: false});
const sequence = context.getSequence();

async function generate(prompt, count) {
  await sequence.clearHistory();
  const began = process.hrtime.bigint(), cpu = process.cpuUsage(), out = [];
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    out.push(token);
    if (out.length > count) break; // one more: so that each of `count` tokens was run through the model
  }
  const used = process.cpuUsage(cpu);
  return [Number(process.hrtime.bigint() - began) / 1e9, (used.user + used.system) / 1e6, ...out.slice(0, count)].join(" ");
}

console.log("ready");
for await (const line of readline.createInterface({input: process.stdin})) {
  const [, prompt, count] = line.split(" ");
  console.log(await generate(prompt.split(",").map(Number), Number(count)));
}
process.exit(0);
